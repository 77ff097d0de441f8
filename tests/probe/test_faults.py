"""Faults on purpose: the training goes on, the reader gets every committed step, counters say what is lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logparity.probe import Probe, ProbeConfig, StoreConfig, open_run
from logparity.probe.store.schemas import Tier

BATCH: dict[str, Any] = {
    "keys": ["a", "b"],
    "rollout_log_probs": [[-1.0, -2.0], [-0.5]],
    "old_log_probs": [[-1.25, -2.0], [-0.5]],
}
ATTEMPT = Path("rank-00000") / "attempt-0001"


@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_turns_the_writer_off_and_metrics_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, background: bool
) -> None:
    probe = Probe(ProbeConfig(enabled=True, run_dir=tmp_path, background=background))
    probe.observe(step=0, **BATCH)
    probe.flush()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("logparity.probe.atomic.os.fsync", full)
    for step in range(1, 4):
        probe.observe(step=step, **BATCH)
        got = probe.flush()
        assert got["mismatch/tokens"] == 3
    monkeypatch.undo()
    probe.close()
    assert got["probe/unwritten_units"] == 3
    assert sum("the writer is off" in record.message for record in caplog.records) == 1
    run = open_run(tmp_path, verify=True)
    assert [step.step for step in run.steps] == [0]
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    probe = Probe(ProbeConfig(enabled=True, run_dir=tmp_path / "file" / "run"))
    for step in range(3):
        probe.observe(step=step, **BATCH)
    got = probe.flush()
    probe.close()
    assert got["probe/unwritten_units"] == 3
    assert got["mismatch/tokens"] == 3
    assert len([r for r in caplog.records if "cannot write" in r.message]) == 1


def test_a_read_only_folder_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so the refusal comes from the call that would meet it.
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("logparity.probe.store.folder.Path.mkdir", refused)
    probe = Probe(ProbeConfig(enabled=True, run_dir=tmp_path / "run"))
    probe.observe(step=0, **BATCH)
    got = probe.flush()
    probe.close()
    assert got["probe/unwritten_units"] == 1
    assert got["mismatch/k3"] > 0


WRITER = """
import sys, pathlib
from logparity.probe import Probe, ProbeConfig, StoreConfig
store = StoreConfig(tokens_every=1)
probe = Probe(ProbeConfig(enabled=True, run_dir=pathlib.Path(sys.argv[1]), run_id="r", store=store))
import numpy as np
lp = -np.random.default_rng(0).exponential(1, (64, 512)).astype(np.float32)
for step in range(int(sys.argv[2]), 100000):
    probe.observe(step=step, keys=[str(i) for i in range(64)], rollout_log_probs=lp, old_log_probs=lp - 0.25,
                  response_mask=np.ones((64, 512), bool))
    probe.flush()
    print(step, flush=True)
"""


def start_writer(folder: Path, first: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def read_until(process: subprocess.Popen[str], count: int) -> int:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(count)][-1]


def test_kill_9_in_the_middle_of_a_write_costs_nothing_that_was_committed(tmp_path: Path) -> None:
    step = 0
    for attempt in range(3):
        process = start_writer(tmp_path, step)
        step = read_until(process, 4)
        time.sleep(0.003 * attempt)  # another place within the write each time
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        run = open_run(tmp_path, verify=True)
        steps = [found.step for found in run.steps]
        assert steps == list(range(len(steps)))
        assert len(steps) > step
        assert all(found.metrics["mismatch/k1"] == pytest.approx(0.25, abs=1e-6) for found in run.steps)
        assert not [note for note in run.notes if "skipped" in note]
    (tmp_path / ATTEMPT / ".summary-00000099.parquet.1.tmp").write_bytes(b"half")
    Probe(ProbeConfig(enabled=True, background=False, run_dir=tmp_path, run_id="r")).observe(step=0, **BATCH)
    probe = Probe(ProbeConfig(enabled=True, background=False, run_dir=tmp_path, run_id="r"))
    probe.observe(step=step, **BATCH)
    probe.close()
    assert not list((tmp_path / ATTEMPT).glob(".*.tmp"))


def test_two_processes_on_one_folder_keep_apart_and_are_told(tmp_path: Path) -> None:
    first = start_writer(tmp_path)
    try:
        read_until(first, 2)
        second = Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=tmp_path, run_id="other"))
        for step in range(2):
            second.observe(step=step, **BATCH)
        second.close()
        read_until(first, 2)
    finally:
        first.kill()
        first.communicate(timeout=30)
    run = open_run(tmp_path, verify=True)
    assert any("attempts 1 and 2 were written at the same time by two processes" in note for note in run.notes)
    assert not [note for note in run.notes if "skipped" in note]
    assert len(list((tmp_path / ATTEMPT).glob("commit-*.json"))) >= 4


def test_a_clock_that_goes_back_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr("logparity.probe.store.summary.time.time", lambda: float(next(now)))
    probe = Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=tmp_path))
    for step in (0, 1, 2, 1, 2, 3):  # the trainer goes back as well
        probe.observe(step=step, **{**BATCH, "old_log_probs": [[-1.0 - step, -2.0], [-0.5]]})
    probe.close()
    run = open_run(tmp_path)
    assert [(unit.step, unit.seq) for unit in run.units] == [(0, 0), (1, 3), (2, 4), (3, 5)]
    assert any("2 units ran again" in note for note in run.notes)


def test_nan_everywhere_is_a_count_and_a_file(tmp_path: Path) -> None:
    nothing = np.full((4, 8), np.nan, np.float32)
    probe = Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=tmp_path))
    probe.observe(step=0, rollout_log_probs=nothing, old_log_probs=nothing, response_mask=np.ones((4, 8), bool))
    probe.close()
    step = open_run(tmp_path).steps[0]
    assert step.metrics["census/nan"] == 32
    assert step.measured.census.places["nan"][0].value == "nan"
    assert step.metrics["mismatch/tokens"] == 0


def test_a_tokenizer_that_fails_costs_texts_only(tmp_path: Path) -> None:
    def broken(_: int) -> str:
        raise KeyError("no such id")

    store = StoreConfig(decode=broken)
    probe = Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=tmp_path, store=store))
    probe.observe(step=0, token_ids=[[1, 2], [3]], **BATCH)
    probe.close()
    run = open_run(tmp_path)
    assert run.worst_tokens()[0]["text"] is None
    assert next(run.rows(Tier.SAMPLES))["texts"] is None


def test_a_forked_child_leaves_the_run_alone(tmp_path: Path) -> None:
    probe = Probe(ProbeConfig(enabled=True, background=False, run_dir=tmp_path))
    probe.observe(step=0, **BATCH)
    probe._pid += 1  # what a child sees
    assert probe.observe(step=1, **BATCH) == {}
    probe.close()
    assert not (tmp_path / ATTEMPT).exists()
