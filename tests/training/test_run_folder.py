"""A run folder is never harmed by mistake, and a metrics file survives a crash."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from logparity.errors import RunFolderError
from logparity.training.run_folder import (
    Existing,
    RunFolder,
    check_run_folder,
    forget_replaced,
    open_run_folder,
    restore_replaced,
)
from logparity.training.tracking import JsonlTracker, Trackers

CONFIG = {"run": {"steps": 3, "seed": 0}, "model": "m"}


def start(root: Path, config: dict[str, object] = CONFIG, existing: Existing = Existing.REFUSE) -> RunFolder:
    check_run_folder(root, config, existing)
    return open_run_folder(root, config, existing)


def take_a_step(run: RunFolder) -> None:
    run.metrics.write_text('{"step": 1}\n', encoding="utf-8")


def test_a_run_with_steps_is_refused_resumed_or_replaced(tmp_path: Path) -> None:
    root = tmp_path / "run"
    take_a_step(start(root))
    with pytest.raises(RunFolderError, match=r"--resume.*--overwrite"):
        start(root)
    run = start(root, {**CONFIG, "run": {"steps": 9, "seed": 0}}, Existing.RESUME)
    assert run.metrics.exists()
    run = start(root, CONFIG, Existing.OVERWRITE)
    assert not run.metrics.exists()


def test_a_replaced_run_is_gone_only_once_the_new_one_has_taken_a_step(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    take_a_step(run)
    start(tmp_path / "run", {**CONFIG, "model": "other"}, Existing.OVERWRITE)
    restore_replaced(run)
    assert run.metrics.exists()
    assert json.loads(run.config.read_text(encoding="utf-8"))["model"] == "m"
    start(tmp_path / "run", CONFIG, Existing.OVERWRITE)
    forget_replaced(run)
    restore_replaced(run)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not run.metrics.exists()


def test_a_run_that_failed_before_its_first_step_blocks_nothing(tmp_path: Path) -> None:
    start(tmp_path / "run")
    for existing in Existing:
        start(tmp_path / "run", {**CONFIG, "model": existing.value}, existing)


def test_checking_leaves_no_trace(tmp_path: Path) -> None:
    check_run_folder(tmp_path / "a" / "b", CONFIG, Existing.REFUSE)
    assert not list(tmp_path.iterdir())


def test_resuming_with_other_numbers_is_refused(tmp_path: Path) -> None:
    take_a_step(start(tmp_path / "run"))
    with pytest.raises(RunFolderError, match=r"run\.seed was 0, now 1"):
        start(tmp_path / "run", {**CONFIG, "run": {"steps": 3, "seed": 1}}, Existing.RESUME)


@pytest.mark.parametrize("existing", [Existing.OVERWRITE, Existing.RESUME])
def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path, existing: Existing) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (tmp_path / "model.safetensors").write_text("precious", encoding="utf-8")
    with pytest.raises(RunFolderError, match="not a run folder"):
        start(tmp_path, CONFIG, existing)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"cannot be written.*Set run\.folder"):
        start(tmp_path / "file" / "run")


def test_resuming_drops_later_steps_and_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n{"step": 3, "a"', encoding="utf-8")
    tracker = JsonlTracker(path, last_step=1)
    tracker.log(2, {"b": 0.5, "a": 7.0})
    tracker.close()
    assert path.read_text(encoding="utf-8") == '{"step": 1, "a": 1.0}\n{"step": 2, "a": 7.0, "b": 0.5}\n'


def test_only_finite_metrics_reach_a_tracker_and_the_others_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    trackers = Trackers([JsonlTracker(path)])
    trackers.log(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    trackers.close()
    assert json.loads(path.read_text(encoding="utf-8")) == {"step": 1, "c": 1.0, "metrics/non_finite": 2.0}
