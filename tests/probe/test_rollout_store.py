"""Rollouts go through Parquet and come back the same; other tools read them as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logparity.errors import InputError
from logparity.probe import read_rollouts, write_rollouts
from tests.support.rollouts import PAIRS, rollout_of, rollouts_of_dump, scored_of

CLEAN = PAIRS / "clean_vllm_bf16_vs_hf_bf16.npz"


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    rollouts, scored = rollouts_of_dump(CLEAN, version=3)
    rewards = [0.5 * i for i in range(len(rollouts))]
    texts = [[f"<{i}>" for i in r.response_ids] for r in rollouts]
    path = tmp_path / "rollouts" / "step_000001.parquet"
    write_rollouts(path, 1, rollouts, scored, rewards, [np.full(len(r), 0.25) for r in rollouts], texts)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    back = list(read_rollouts(tmp_path / "rollouts"))
    assert [row.rollout.key for row in back] == [r.key for r in rollouts]
    for row, rollout, (_, log_probs), reward, text in zip(back, rollouts, scored, rewards, texts, strict=True):
        for name in ("prompt_ids", "response_ids", "rollout_log_probs", "response_mask"):
            np.testing.assert_array_equal(getattr(row.rollout, name), getattr(rollout, name))
        for name in ("group", "weight_version", "sampling", "engine", "finish_reason", "text"):
            assert getattr(row.rollout, name) == getattr(rollout, name)
        np.testing.assert_array_equal(row.old_log_probs, log_probs)
        np.testing.assert_array_equal(row.advantages, np.full(len(rollout), 0.25, np.float32))
        assert (row.step, row.reward, row.train_weight_version, row.token_texts) == (1, reward, 3, tuple(text))


def test_any_parquet_reader_finds_list_columns_and_a_schema_version(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "a.parquet", 4, [rollout_of("k", [-0.5, -0.25])], scored_of(k=[-0.5, -0.5]), [1], [0.5])
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.schema.metadata[b"logparity.rollouts.version"] == b"1"
    assert table.column("rollout_log_probs").to_pylist() == [[-0.5, -0.25]]
    assert table.column("advantages").to_pylist() == [[0.5, 0.5]]
    assert table.column("token_texts").to_pylist() == [None]


def test_files_of_a_folder_come_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (10, 2):
        rollouts = [rollout_of(f"k{step}", [-0.5])]
        write_rollouts(
            tmp_path / f"step_{step:06d}.parquet", step, rollouts, scored_of(**{f"k{step}": [-0.5]}), [1], [0]
        )
    assert [row.step for row in read_rollouts(tmp_path)] == [2, 10]


def test_lists_of_another_length_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    rollouts, scored = [rollout_of("k", [-0.5, -0.25])], scored_of(k=[-0.5, -0.5])
    for name, arguments in {
        "rewards": ([1, 2], [0.0]),
        "advantages": ([1], [[0.0]]),
        "token_texts": ([1], [0.0], [["one"]]),
    }.items():
        with pytest.raises(InputError, match=name):
            write_rollouts(tmp_path / "a.parquet", 0, rollouts, scored, *arguments)
    with pytest.raises(InputError, match="old_log_probs of sample 'k'"):
        write_rollouts(tmp_path / "a.parquet", 0, rollouts, scored_of(other=[-0.5]), [1], [0.0])
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_ours_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got none"):
        list(read_rollouts(tmp_path))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"other\.parquet.*schema version 1, got none"):
        list(read_rollouts(tmp_path))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"broken\.parquet"):
        list(read_rollouts(tmp_path / "broken.parquet"))
