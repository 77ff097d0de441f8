"""``logparity score`` end to end on a small model: files in, files out, the comparison in between."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logparity.actors import HFActor
from logparity.cli import main
from logparity.probe.rollout_store import write_rollouts
from logparity.records import LogProbMode, Rollout, SamplingSettings, TokenBatch
from logparity.rollout import HFRolloutEngine, Request


def sampled(folder: Path, mode: LogProbMode = LogProbMode.PROCESSED, **settings: object) -> list[Rollout]:
    engine = HFRolloutEngine(folder, dtype="float32", device="cpu", log_prob_mode=mode)
    requests = [Request(f"s{i}", "g", np.array([1, 70 + i]), seed=i) for i in range(5)]
    return engine.generate(requests, SamplingSettings(**{"temperature": 0.7, "max_new_tokens": 9} | settings))


def score(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, float]:
    command = ["score", *map(str, arguments), "--dtype", "float32", "--device", "cpu", "--json"]
    assert main(command) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def lines(path: Path, *objects: object) -> Path:
    path.write_text("\n".join(json.dumps(o) for o in objects) + "\n")
    return path


@pytest.mark.parametrize("mode", list(LogProbMode))
def test_a_runs_rollouts_are_scored_at_the_temperature_their_log_probs_belong_to(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: LogProbMode
) -> None:
    rollouts = sampled(tiny_folder, mode)
    scored = HFActor(tiny_folder, dtype="float32", device="cpu").score(TokenBatch.from_rollouts(rollouts), entropy=True)
    write_rollouts(tmp_path / "rollouts" / "step_1.parquet", 1, rollouts, scored, [0.0] * 5, [0.0] * 5)
    found = score(capsys, tmp_path / "rollouts", "--model", tiny_folder, "--entropy")
    assert (found["sequences"], found["tokens"], found["mismatch/tokens"]) == (5, 45, 45)
    assert found["training/rollout_probs_diff_mean"] < 1e-5
    rows = pq.read_table(tmp_path / "rollouts_scored.parquet").to_pylist()
    assert [row["key"] for row in rows] == [r.key for r in rollouts]
    for row, rollout, expected in zip(rows, rollouts, scored.entropy, strict=True):
        np.testing.assert_allclose(row["log_probs"], rollout.rollout_log_probs, atol=1e-5)
        if mode is LogProbMode.PROCESSED:
            np.testing.assert_allclose(row["entropy"], expected, atol=1e-5)


def test_json_lines_from_any_engine_are_compared_on_active_tokens(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = sampled(tiny_folder)
    off_by = [0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 99.0]
    objects = [
        {
            "prompt_ids": r.prompt_ids.tolist(),
            "response_ids": r.response_ids.tolist(),
            "rollout_log_probs": (r.rollout_log_probs - np.array(off_by)).tolist(),
            "response_mask": [1] * 8 + [0],
            "temperature": 0.7,
        }
        for r in rollouts
    ]
    found = score(capsys, lines(tmp_path / "dump.jsonl", *objects), "--model", tiny_folder)
    assert found["mismatch/tokens"] == 40
    assert found["mismatch/log_ratio_mean"] == pytest.approx(0.5 / 8, abs=1e-5)
    assert found["mismatch/log_ratio_abs_max"] == pytest.approx(0.5, abs=1e-5)
    same = score(
        capsys, tmp_path / "dump.jsonl", "--model", tiny_folder, "--temperature", "1.3", "--out", tmp_path / "o"
    )
    assert same["mismatch/log_ratio_abs_mean"] > 0.05


def test_without_rollout_log_probs_there_is_nothing_to_compare(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines(tmp_path / "plain.jsonl", {"key": "a", "prompt_ids": [1, 5], "response_ids": [7, 8]})
    assert main(["score", str(source), "--model", str(tiny_folder), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "scored 2 tokens of 1 sequences" in shown
    assert "nothing to compare" in shown
    (row,) = pq.read_table(tmp_path / "plain_scored.parquet").to_pylist()
    assert (row["key"], row["entropy"], row["rollout_log_probs"]) == ("a", None, None)
    assert all(value < 0 for value in row["log_probs"])


def test_a_cut_vocabulary_is_pointed_out(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts = sampled(tiny_folder, top_k=3)
    scored = HFActor(tiny_folder, dtype="float32", device="cpu").score(TokenBatch.from_rollouts(rollouts))
    write_rollouts(tmp_path / "r.parquet", 1, rollouts, scored, [0.0] * 5, [0.0] * 5)
    assert main(["score", str(tmp_path / "r.parquet"), "--model", str(tiny_folder), "--device", "cpu"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "5 sequences report log-probs renormalised after top-k" in shown
    assert "KL(rollout || train)" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "bad.jsonl, line 1: "),
        ('{"prompt_ids": [1]}', "line 1: field 'response_ids' is missing"),
        ('\n{"prompt_ids": [1], "response_ids": [1.5]}', "line 2: response_ids: expected a list of integers"),
        ('{"prompt_ids": [1], "response_ids": [1], "mask": [1]}', "unknown field 'mask'"),
        ('{"prompt_ids": [1], "response_ids": [1], "response_mask": [2]}', "expected a list of 0 and 1"),
        (
            '{"key": "k", "prompt_ids": [1], "response_ids": [1], "rollout_log_probs": [-1, -2]}',
            "rollout_log_probs of sample 'k': expected 1 values, one per response id, got 2",
        ),
        (
            '{"key": "k", "prompt_ids": [1], "response_ids": [999]}',
            "response of 'k': expected ids in [0, 259), got 999",
        ),
        ('{"key": "k", "prompt_ids": [], "response_ids": [9]}', "prompt of 'k': expected at least one id"),
        (
            '\n{"prompt_ids": [1], "response_ids": [1], "log_prob_mode": "weird"}',
            "line 2: log_prob_mode: expected one of raw, processed, got 'weird'",
        ),
        (
            '{"prompt_ids": [1], "response_ids": [1], "temperature": 0}',
            "line 1: temperature: expected a finite number > 0, got 0",
        ),
        ('{"prompt_ids": [1], "response_ids": [1], "temperature": "hot"}', "finite number > 0, got 'hot'"),
        ('{"prompt_ids": [1], "response_ids": [1], "rollout_log_probs": ["a"]}', "line 1: rollout_log_probs: expected"),
        (b'\n\n{"key": "caf\xe9", "prompt_ids": [1], "response_ids": [1]}', "line 3: expected UTF-8 text"),
        (b"\xff\xfe{\x00", "line 1: expected UTF-8 text, got invalid start byte at byte 0"),
        ("", "expected at least one sequence to score"),
    ],
)
def test_bad_lines_end_in_one_line_and_leave_nothing(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | bytes, message: str
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["score", str(tmp_path / "bad.jsonl"), "--model", str(tiny_folder), "--device", "cpu"]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.parquet"], "nowhere.parquet: expected a Parquet file"),
        (["{file}", "--model", "nowhere"], "model folder nowhere does not exist"),
        (["{file}", "--temperature", "0"], "--temperature: expected a finite number > 0, got 0.0"),
        (["{file}", "--device", "tpu9", "--model", "{model}"], "device: expected for instance"),
        (["{file}", "--device", "cuda:99", "--model", "{model}"], "device: cuda:99 is not here"),
        (["{file}", "--out", "{file}/below", "--model", "{model}"], "expected a place to write to"),
        (["{file}", "--out", "{file}"], "--out: expected another file than the one that is scored"),
        (["{file}", "--fail-above", "nan"], "--fail-above: expected a difference of probabilities in [0, 1], got nan"),
        (["{file}", "--fail-above", "0.1", "--model", "{model}"], "--fail-above: expected tokens with both log-probs"),
    ],
)
def test_wrong_use_is_named(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    file = lines(tmp_path / "a.jsonl", {"prompt_ids": [1], "response_ids": [2]})
    words = [a.format(file=file, model=tiny_folder) for a in arguments]
    before = file.read_bytes()
    assert main(["score", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert file.read_bytes() == before


def test_scored_output_stays_out_of_a_runs_rollouts(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = sampled(tiny_folder)
    scored = HFActor(tiny_folder, dtype="float32", device="cpu").score(TokenBatch.from_rollouts(rollouts))
    folder = tmp_path / "rollouts"
    for step in (1, 2):
        write_rollouts(folder / f"step_{step}.parquet", step, rollouts, scored, [0.0] * 5, [0.0] * 5)
    found = score(capsys, folder / "step_1.parquet", "--model", tiny_folder)
    assert found["out"] == str(tmp_path / "scored" / "step_1.parquet")
    assert pq.read_table(found["out"]).num_rows == 5
    assert score(capsys, folder, "--model", tiny_folder)["sequences"] == 10
    assert sorted(p.name for p in folder.iterdir()) == ["step_1.parquet", "step_2.parquet"]
    before = (folder / "step_1.parquet").read_bytes()
    (tmp_path / "link").symlink_to(folder / "step_1.parquet")
    for source, out in (
        (folder, folder / "scored.parquet"),
        (folder / "step_1.parquet", folder / "x.parquet"),
        (folder / "step_1.parquet", folder / "step_1.parquet"),
        (folder / "step_1.parquet", tmp_path / "link"),
    ):
        assert main(["score", str(source), "--out", str(out), "--model", str(tiny_folder)]) == 2
        assert capsys.readouterr().err.startswith("error: --out: expected ")
    assert (folder / "step_1.parquet").read_bytes() == before


def plain_rows(rollouts: list[Rollout]) -> list[dict[str, object]]:
    return [
        {
            "prompt_ids": r.prompt_ids.tolist(),
            "response_ids": r.response_ids.tolist(),
            "rollout_log_probs": r.rollout_log_probs.tolist(),
            "response_mask": [True] * 8 + [False],
            "temperature": 0.7,
        }
        for r in rollouts
    ]


def test_plain_parquet_says_what_the_same_json_lines_say(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = plain_rows(sampled(tiny_folder))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "engine.parquet")
    expected = score(capsys, lines(tmp_path / "dump.jsonl", *rows), "--model", tiny_folder)
    found = score(capsys, tmp_path / "engine.parquet", "--model", tiny_folder)
    assert found["mismatch/tokens"] == 40
    assert found.pop("out") == str(tmp_path / "engine_scored.parquet")
    assert found == {name: value for name, value in expected.items() if name != "out"}
    only_ids = [{"prompt_ids": [1], "response_ids": [7, 8], "key": None}]
    pq.write_table(pa.Table.from_pylist(only_ids), tmp_path / "ids.parquet")
    assert score(capsys, tmp_path / "ids.parquet", "--model", tiny_folder)["tokens"] == 2
    (row,) = pq.read_table(tmp_path / "ids_scored.parquet").to_pylist()
    assert row["key"] == "1"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt_ids": [1]}, "bad.parquet, row 1: field 'response_ids' is missing"),
        ({"prompt_ids": [1], "response_ids": [1.5]}, "row 1: response_ids: expected a list of integers"),
        ({"prompt_ids": [1], "response_ids": [1], "mask": [1]}, "row 1: unknown field 'mask'"),
        ({"prompt_ids": [1], "response_ids": [1], "temperature": 0.0}, "row 1: temperature: expected a finite"),
    ],
)
def test_bad_parquet_rows_are_named(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, object], message: str
) -> None:
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "bad.parquet")
    assert main(["score", str(tmp_path / "bad.parquet"), "--model", str(tiny_folder), "--device", "cpu"]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bad.parquet"]


def test_exit_code_1_where_the_mean_difference_is_above_the_limit(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lines(tmp_path / "a.jsonl", *plain_rows(sampled(tiny_folder)))
    command = ["score", str(file), "--model", str(tiny_folder), "--device", "cpu", "--dtype", "float32", "--json"]
    assert main([*command, "--fail-above", "0.001"]) == 0
    assert not capsys.readouterr().err
    assert main([*command, "--temperature", "2", "--fail-above", "0.001"]) == 1
    shown = capsys.readouterr()
    mean = json.loads(shown.out)["training/rollout_probs_diff_mean"]
    assert shown.err == f"mean |p_rollout - p_train| is {mean:.6g}, above --fail-above 0.001\n"
