"""What a run keeps, and that it reads back as it was: tiers, ranks, attempts, versions, quota, recorder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from logparity.errors import InputError
from logparity.probe import AlarmConfig, AlarmRule, Probe, ProbeConfig, RuleKind, StoreConfig, open_run
from logparity.probe.store.schemas import Tier
from tests.support.captured import ragged_rows


def arguments(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "keys": [row["key"] for row in rows],
        "rollout_log_probs": [row["rollout"] for row in rows],
        "old_log_probs": [row["train"] for row in rows],
        "response_mask": [row["mask"] for row in rows],
        "token_ids": [np.arange(len(row["mask"])) + 7 for row in rows],
        "groups": {"env": [row["env"] for row in rows]},
    }


def run_probe(folder: Path, steps: range, rows: list[dict[str, Any]], rank: int = 0, **settings: Any) -> None:
    probe = Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=folder, rank=rank, **settings))
    for step in steps:
        probe.observe(step=step, **arguments(rows))
    probe.close()


def test_ranks_merge_into_what_one_process_measures(tmp_path: Path) -> None:
    rows = ragged_rows(0, 30, 60)
    for rank in range(3):
        run_probe(tmp_path / "ranks", range(2), rows[rank::3], rank=rank, run_id="r")
    run_probe(tmp_path / "one", range(2), rows, run_id="r")
    ranks, one = open_run(tmp_path / "ranks", verify=True), open_run(tmp_path / "one")
    assert ranks.notes == one.notes == []
    assert len(ranks.units) == 6
    for a, b in zip(ranks.steps, one.steps, strict=True):
        assert a.metrics == b.metrics
        groups = a.measured.group_rows()
        assert {row["label"] for row in groups.pop("rank")} == {"0", "1", "2"}
        assert groups == {name: rows for name, rows in b.measured.group_rows().items() if name != "rank"}
    assert ranks.whole.tokens.counts["tokens"] == 2 * sum(int(row["mask"].sum()) for row in rows)


def test_the_worst_tokens_come_with_their_surroundings(tmp_path: Path) -> None:
    rows = ragged_rows(1, 12, 50)
    for row in rows:
        row["mask"][:] = True
    rows[4]["rollout"], rows[4]["train"] = -np.ones(30, np.float32), -np.ones(30, np.float32)
    rows[4]["mask"], rows[4]["train"][20] = np.ones(30, bool), -9
    run_probe(tmp_path, range(1), rows, store=StoreConfig(worst_tokens=5, context=3, decode=lambda token: f"<{token}>"))
    worst = open_run(tmp_path).worst_tokens(1)[0]
    assert (worst["key"], worst["position"], worst["token_id"], worst["text"]) == (rows[4]["key"], 20, 27, "<27>")
    assert worst["log_ratio"] == -8
    assert worst["context_start"] == 17
    assert worst["context_ids"] == list(range(24, 31))
    assert worst["context_texts"][3] == "<27>"
    assert worst["context_old_log_probs"][3] == -9
    size = np.concatenate([np.abs(row["train"] - row["rollout"]) for row in rows])
    diff = np.concatenate([np.abs(np.exp(row["train"]) - np.exp(row["rollout"])) for row in rows])
    stored = list(open_run(tmp_path).rows(Tier.WORST))
    np.testing.assert_allclose(sorted(abs(r["log_ratio"]) for r in stored)[-5:], np.sort(size)[-5:], rtol=1e-5)
    np.testing.assert_allclose(sorted(r["prob_diff"] for r in stored)[-5:], np.sort(diff)[-5:], rtol=1e-5)


def test_samples_are_drawn_by_key_whatever_the_order_and_the_split(tmp_path: Path) -> None:
    rows = ragged_rows(2, 40, 20)
    run_probe(tmp_path / "a", range(3), rows, store=StoreConfig(samples=6))
    run_probe(tmp_path / "b", range(3), rows[::-1], store=StoreConfig(samples=6))
    drawn = [[(r["step"], r["key"]) for r in open_run(tmp_path / x).rows(Tier.SAMPLES)] for x in "ab"]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 18
    assert {key for step, key in drawn[0] if step == 0} != {key for step, key in drawn[0] if step == 1}
    row = next(open_run(tmp_path / "a").rows(Tier.SAMPLES))
    source = next(r for r in rows if r["key"] == row["key"])
    np.testing.assert_array_equal(np.float32(row["rollout_log_probs"]), source["rollout"])
    assert row["mask"] == source["mask"].tolist()


def test_every_token_takes_four_bytes_and_reads_back(tmp_path: Path) -> None:
    rows = ragged_rows(3, 60, 2000)
    for row in rows:  # two turns with a tool's answer between them
        row["mask"][:] = True
        row["mask"][len(row["mask"]) // 3 : len(row["mask"]) // 2] = False
    run_probe(tmp_path, range(4), rows, store=StoreConfig(tokens_every=2, recorder_units=0, samples=0))
    run = open_run(tmp_path)
    assert [unit.step for unit in run.units if Tier.TOKENS in unit.files] == [0, 2]
    tokens = sum(int(row["mask"].sum()) for row in rows)
    assert run.units[0].files[Tier.TOKENS].stat().st_size <= 4 * tokens
    for stored, source in zip((r for r in run.rows(Tier.TOKENS) if r["step"] == 2), rows, strict=True):
        mask = source["mask"]
        positions = [
            p for s, n in zip(stored["turn_starts"], stored["turn_lengths"], strict=True) for p in range(s, s + n)
        ]
        assert positions == np.flatnonzero(mask).tolist()
        np.testing.assert_array_equal(
            np.float16(stored["rollout_log_probs"]), source["rollout"][mask].astype(np.float16)
        )
        ratio = (source["train"][mask] - source["rollout"][mask]).astype(np.float16)
        np.testing.assert_array_equal(np.float16(stored["log_ratio"]), ratio)
        assert (stored["rank"], stored["attempt"]) == (0, 1)


def test_an_alarm_writes_the_tokens_that_led_to_it(tmp_path: Path) -> None:
    rule = AlarmRule("mine", "mismatch/k1", RuleKind.ABOVE, 1.0)
    alarms = AlarmConfig(presets=(), rules=(rule,))
    settings = ProbeConfig(
        enabled=True,
        strict=True,
        background=False,
        run_dir=tmp_path,
        alarms=alarms,
        store=StoreConfig(recorder_units=2),
    )
    probe = Probe(settings)
    for step, train in enumerate([-1.0, -1.0, -1.0, -3.0, -1.0]):
        probe.observe(step=step, keys=["a"], rollout_log_probs=[[-1.0]], old_log_probs=[[train]])
    probe.close()
    run = open_run(tmp_path)
    assert [unit.step for unit in run.units if Tier.TOKENS in unit.files] == [2, 3]
    assert [unit.alarms for unit in run.units] == [(), (), (), ("mine",), ()]
    assert next(r for r in run.rows(Tier.TOKENS) if r["step"] == 3)["log_ratio"] == [-2.0]


def test_summaries_are_small_at_production_shapes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shape = (64, 4096)
    rollout = -rng.exponential(0.7, shape).astype(np.float32)
    train = -np.abs(rollout + rng.normal(0, 0.1, shape)).astype(np.float32)
    mask = np.arange(4096) < rng.integers(1, 4097, 64)[:, None]
    probe = Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=tmp_path))
    probe.observe(
        step=0,
        keys=[f"{'k' * 36}{i}" for i in range(64)],
        rollout_log_probs=rollout,
        old_log_probs=train,
        response_mask=mask,
        token_ids=np.ones(shape, int),
        groups={name: [f"{name}{i}" for i in range(64)] for name in ("env", "data_source", "engine")},
    )
    probe.close()
    files = open_run(tmp_path).units[0].files
    assert files[Tier.SUMMARY].stat().st_size <= 200_000
    assert files[Tier.WORST].stat().st_size <= 1_000_000


def test_the_quota_deletes_tokens_first_and_summaries_never(tmp_path: Path) -> None:
    rows = ragged_rows(4, 50, 300)
    run_probe(tmp_path, range(6), rows, store=StoreConfig(tokens_every=1, quota_bytes=400_000, samples=2))
    run = open_run(tmp_path, verify=True)
    assert run.notes == []
    assert len(run.steps) == 6
    assert all(Tier.SUMMARY in unit.files for unit in run.units)
    pruned = [unit for unit in run.units if Tier.TOKENS in unit.pruned]
    assert pruned
    assert pruned == list(run.units[: len(pruned)])
    used = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    assert used <= 400_000


def test_a_resumed_run_takes_over_from_its_first_step(tmp_path: Path) -> None:
    rows = ragged_rows(5, 8, 20)
    run_probe(tmp_path, range(6), rows[:4], run_id="r")
    run_probe(tmp_path, range(3, 5), rows, run_id="r")
    run = open_run(tmp_path)
    assert [(unit.step, unit.attempt) for unit in run.units] == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]
    assert len(run.notes) == 1
    assert "3 units of earlier attempts left out, attempt 2 ran from step 3" in run.notes[0]


def test_two_run_ids_in_one_folder_are_told(tmp_path: Path) -> None:
    run_probe(tmp_path, range(1), ragged_rows(6, 2, 5), run_id="one")
    run_probe(tmp_path, range(1, 2), ragged_rows(6, 2, 5), run_id="two")
    assert any("2 run ids share this folder" in note for note in open_run(tmp_path).notes)


@pytest.mark.parametrize("damage", ["truncated", "one byte", "gone", "no parquet", "marker"])
def test_damage_costs_its_own_part_and_leaves_a_note(tmp_path: Path, damage: str) -> None:
    run_probe(tmp_path, range(3), ragged_rows(7, 5, 20))
    attempt = tmp_path / "rank-00000" / "attempt-0001"
    summary = attempt / "summary-00000001.parquet"
    data = summary.read_bytes()
    if damage == "truncated":
        summary.write_bytes(data[:-20])
    elif damage == "one byte":
        summary.write_bytes(data[:400] + bytes([data[400] ^ 255]) + data[401:])
    elif damage == "gone":
        summary.unlink()
    elif damage == "no parquet":
        summary.write_bytes(bytes(len(data)))
    else:
        (attempt / "commit-00000001.json").write_text("{")
    run = open_run(tmp_path, verify=damage == "one byte")
    assert [step.step for step in run.steps] == [0, 2]
    assert any("00000001" in note for note in run.notes)


def test_what_is_not_committed_does_not_exist(tmp_path: Path) -> None:
    run_probe(tmp_path, range(2), ragged_rows(8, 5, 20))
    (tmp_path / "rank-00000" / "attempt-0001" / "commit-00000001.json").unlink()
    assert [step.step for step in open_run(tmp_path).steps] == [0]


def test_a_newer_version_says_so(tmp_path: Path) -> None:
    run_probe(tmp_path, range(1), ragged_rows(9, 2, 5))
    marker = tmp_path / "rank-00000" / "attempt-0001" / "commit-00000000.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "version": 99}))
    with pytest.raises(InputError, match="got 99"):
        open_run(tmp_path)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd"])
def test_a_marker_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    run_probe(tmp_path, range(1), ragged_rows(9, 2, 5))
    marker = tmp_path / "rank-00000" / "attempt-0001" / "commit-00000000.json"
    data = json.loads(marker.read_text())
    data["files"]["summary"]["name"] = name
    marker.write_text(json.dumps(data))
    run = open_run(tmp_path)
    assert Tier.SUMMARY not in run.units[0].files
    assert any("passwd" in note for note in run.notes)


def test_hostile_keys_stay_in_their_column(tmp_path: Path) -> None:
    rows = ragged_rows(10, 3, 5)
    for row, key in zip(rows, ("../../x", "a/b\0c", "\u202e<script>"), strict=True):
        row["key"] = key
        row["mask"][:] = True
    run_probe(tmp_path, range(1), rows)
    assert {row["key"] for row in open_run(tmp_path).rows(Tier.SAMPLES)} == {row["key"] for row in rows}
    assert not list(tmp_path.parent.glob("x*"))


def test_other_folders_are_refused_by_name(tmp_path: Path) -> None:
    for path, got in ((tmp_path / "absent", "nothing there"), (tmp_path, "another folder"), (Path(__file__), "a file")):
        with pytest.raises(InputError, match=got):
            open_run(path)


def test_any_reader_opens_the_tables(tmp_path: Path) -> None:
    run_probe(tmp_path, range(2), ragged_rows(11, 5, 20))
    table = pq.read_table(tmp_path / "rank-00000" / "attempt-0001" / "summary-00000000.parquet")
    metrics = dict(table.column("metrics")[0].as_py())
    assert metrics["mismatch/tokens"] == open_run(tmp_path).steps[0].metrics["mismatch/tokens"]
    duckdb = pytest.importorskip("duckdb")
    assert duckdb is not None
    rows = open_run(tmp_path).query("select step, metrics['mismatch/k3'] from summary order by step").fetchall()
    assert rows == [(step.step, step.metrics["mismatch/k3"]) for step in open_run(tmp_path).steps]
