"""A whole run on a small model: what it leaves behind, and that stopping it anywhere changes no number."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logparity.cli import main
from logparity.probe import read_rollouts
from logparity.training.checkpoint import list_checkpoints

COSTS = ("timing_s/", "perf/", "memory/")


def read_metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def reproducible(run: Path) -> list[str]:
    """Metrics as written, bit for bit, without what depends on the machine's mood."""
    return [
        json.dumps({key: value for key, value in line.items() if not key.startswith(COSTS)})
        for line in read_metrics(run)
    ]


@pytest.fixture
def finished(tiny_config: Path, tmp_path: Path) -> Path:
    assert main(["train", str(tiny_config)]) == 0
    return tmp_path / "run"


def test_a_run_leaves_everything_that_it_promises(finished: Path) -> None:
    lines = read_metrics(finished)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert [path.name for path in list_checkpoints(finished / "checkpoints")] == ["step_000004", "step_000006"]
    assert (finished / "report.html").stat().st_size > 10_000
    for step in range(1, 7):
        diff = np.load(finished / "prob_diff" / f"prob_diff_step_{step}.npy")
        mask = np.load(finished / "prob_diff" / f"prob_mask_step_{step}.npy")
        assert (diff.dtype, mask.dtype) == (np.float32, np.bool_)
        assert diff.shape == mask.shape
        stored = list(read_rollouts(finished / "rollouts" / f"step_{step:06d}.parquet"))
        assert len(stored) == 6
        assert int(mask.sum()) == sum(len(s.rollout) for s in stored)


def test_the_logged_aggregates_are_those_of_the_stored_tokens(finished: Path) -> None:
    """Against the published formulas, in float64 from what the run stored."""
    for line in read_metrics(finished):
        stored = list(read_rollouts(finished / "rollouts" / f"step_{line['step']:06d}.parquet"))
        rollout = np.exp(np.concatenate([s.rollout.rollout_log_probs for s in stored]).astype(np.float64))
        old = np.exp(np.concatenate([s.old_log_probs for s in stored]).astype(np.float64))
        diff = np.abs(rollout - old)
        prefix = "training/rollout_probs_diff"
        assert line[f"{prefix}_valid"] == 1
        assert line[f"{prefix}_max"] == pytest.approx(diff.max(), abs=1e-6)
        assert line[f"{prefix}_mean"] == pytest.approx(diff.mean(), abs=1e-6)
        assert line[f"{prefix}_std"] == pytest.approx(diff.std(ddof=1), abs=1e-6)
        correlation = np.corrcoef(rollout, old)[0, 1]
        assert line["training/rollout_actor_probs_pearson_corr"] == pytest.approx(correlation, abs=1e-6)


def test_the_policy_learns_and_weights_are_versioned(finished: Path) -> None:
    versions = [
        next(iter(read_rollouts(finished / "rollouts" / f"step_{step:06d}.parquet"))).rollout.weight_version
        for step in (1, 2, 6)
    ]
    assert versions == [0, 2, 10]


def test_equal_seeds_give_equal_runs_and_others_do_not(finished: Path, tiny_config: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    assert main(["train", str(tiny_config), "--run.folder", str(again), "--run.steps", "2"]) == 0
    assert reproducible(again) == reproducible(finished)[:2]
    assert main(["train", str(tiny_config), "--run.folder", str(other), "--run.steps", "1", "--run.seed", "7"]) == 0
    assert reproducible(other) != reproducible(finished)[:1]


def start(config: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "logparity", "train", str(config), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lines(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    path, deadline = run / "metrics.jsonl", time.monotonic() + 120
    while not path.exists() or path.read_text(encoding="utf-8").count("\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("after", [1, 3])
def test_killed_in_the_middle_of_a_step_it_resumes_to_the_same_metrics(
    after: int, finished: Path, tiny_config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    flags = ("--run.folder", str(run))
    process = start(tiny_config, *flags)
    wait_for_lines(run, after, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert len(read_metrics(run)) < 6
    resumed = start(tiny_config, *flags, "--resume")
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert reproducible(run) == reproducible(finished)


def test_ctrl_c_saves_and_resumes(finished: Path, tiny_config: Path, tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    process = start(tiny_config, "--run.folder", str(run))
    wait_for_lines(run, 1, process)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "go on with --resume" in shown
    steps = [line["step"] for line in read_metrics(run)]
    assert list_checkpoints(run / "checkpoints")[-1].name == f"step_{steps[-1]:06d}"
    assert main(["train", str(tiny_config), "--run.folder", str(run), "--resume"]) == 0
    assert reproducible(run) == reproducible(finished)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "/no/such/model"], "model"),
        (["--task.file", "nothing.jsonl"], "task.file nothing.jsonl"),
        (["--rollout.max-new-tokens", "1000"], "model's context is 128"),
        (["--reward", "tests.training.test_loop:always_nan"], "expected a finite number, got nan"),
        (["--reward", "tests.training.test_loop:always_raises"], "raised RuntimeError('boom')"),
        (["--reward", "tests.training.test_loop:always_exits"], "raised SystemExit(3)"),
        (["--run.folder", "/proc/run"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    flags: list[str], message: str, tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tiny_config), *flags]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_mistake_costs_no_earlier_run(finished: Path, tiny_config: Path) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    for flags in (["--model", "/no/such/model"], ["--reward", "tests.training.test_loop:always_nan"]):
        assert main(["train", str(tiny_config), "--overwrite", *flags]) == 2
        assert (finished / "metrics.jsonl").read_bytes() == before
        assert (finished / "report.html").exists()


def test_a_failed_start_does_not_block_the_next(tiny_config: Path, tmp_path: Path) -> None:
    assert main(["train", str(tiny_config), "--model", "/no/such/model"]) == 2
    assert not (tmp_path / "run").exists()
    assert main(["train", str(tiny_config), "--reward", "tests.training.test_loop:always_nan"]) == 2
    assert main(["train", str(tiny_config), "--run.steps", "1"]) == 0


def test_files_of_two_runs_are_not_mixed(tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--run.steps", "1", "--probe.save-dir", str(tmp_path / "pairs")]
    assert main(["train", str(tiny_config), *shared]) == 0
    assert ".npy is missing" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert main(["train", str(tiny_config), *shared, "--run.folder", str(tmp_path / "other")]) == 2
    assert "holds per-token files of another run" in capsys.readouterr().err


def always_nan(sample: object) -> float:
    return math.nan


def always_raises(sample: object) -> float:
    raise RuntimeError("boom")


def always_exits(sample: object) -> float:
    sys.exit(3)


def sometimes_raises(sample: Any) -> float:
    if sample.key.endswith("-001"):
        raise RuntimeError("boom")
    return float(len(sample.response))


def test_a_skipped_reward_leaves_its_sample_out(tiny_config: Path, tmp_path: Path) -> None:
    flags = ["--reward", "tests.training.test_loop:sometimes_raises", "--on-reward-error", "skip", "--run.steps", "1"]
    assert main(["train", str(tiny_config), *flags]) == 0
    run = tmp_path / "run"
    assert read_metrics(run)[0]["reward/skipped"] == 2
    for stored in read_rollouts(run / "rollouts"):
        failed = stored.rollout.key.endswith("-001")
        assert math.isnan(stored.reward) == failed
        if failed:
            assert not stored.advantages.any()


def test_an_existing_run_is_refused(finished: Path, tiny_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    assert main(["train", str(tiny_config)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_raw_log_probs_are_compared_with_an_untempered_score(tiny_config: Path, tmp_path: Path) -> None:
    flags = ["--rollout.temperature", "0.6", "--rollout.log-prob-mode", "raw", "--run.steps", "1"]
    flags += ["--rollout.dtype", "float32", "--actor.dtype", "float32"]
    assert main(["train", str(tiny_config), *flags]) == 0
    assert read_metrics(tmp_path / "run")[0]["training/rollout_probs_diff_mean"] < 1e-5
