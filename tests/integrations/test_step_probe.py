"""A host's steps: measured in the call while they are small, on a thread once they are not; never silently late."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np
import pytest

from logparity.integrations import step_probe
from logparity.integrations.step_probe import HostBatch, StepProbe
from logparity.probe import ProbeConfig, analyze_folder
from logparity.probe.pairs import TokenPairs

LOGGER = logging.getLogger("logparity.test")
CONFIG = ProbeConfig(enabled=True)


def batch(gap: float, rows: int = 2, width: int = 3) -> HostBatch:
    rollout = np.full((rows, width), -1.0, np.float32)
    return HostBatch(TokenPairs(rollout, rollout - np.float32(gap), np.ones((rows, width), bool)))


def wait_for(probe: StepProbe) -> None:
    assert probe._probe is not None
    deadline = time.monotonic() + 120
    while not (probe._probe._pipeline and probe._probe._pipeline.completed):
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_probe, "LATE_FROM", 1)


def test_a_small_step_is_measured_in_its_own_call() -> None:
    probe = StepProbe(CONFIG, LOGGER)
    for step in range(2):
        metrics = probe.observe(lambda: batch(0.5 + step), step=step)  # noqa: B023
        assert metrics["mismatch/k1"] == pytest.approx(0.5 + step)
        assert "probe/steps_late" not in metrics


def test_a_large_step_comes_with_the_next_and_says_so(everything_is_large: None, caplog) -> None:
    probe = StepProbe(CONFIG, LOGGER)
    with caplog.at_level(logging.INFO):
        first = probe.observe(lambda: batch(0.5), step=7)
    assert "6 token slots a step are measured on a thread: metrics come one step later" in caplog.text
    assert first == {}
    wait_for(probe)
    second = probe.observe(lambda: batch(1.5), step=8)
    assert second["probe/metrics_step"] == 7
    assert second["probe/steps_late"] == 1
    assert second["mismatch/k1"] == pytest.approx(0.5)


def test_a_late_sub_step_keeps_its_own_name(everything_is_large: None) -> None:
    probe = StepProbe(CONFIG, LOGGER)
    probe.observe(lambda: batch(0.5), step=1)
    wait_for(probe)
    assert "mismatch/k1" in probe.observe(lambda: batch(0.25), step=1, sub_step=1)
    wait_for(probe)
    late = probe.observe(lambda: batch(0.75), step=2)
    assert late["mismatch/sub1/k1"] == pytest.approx(0.25)
    assert late["probe/sub1/steps_late"] == 1
    assert "mismatch/k1" not in late


def test_a_large_last_step_reaches_its_files(everything_is_large: None, tmp_path: Path) -> None:
    probe = StepProbe(ProbeConfig(enabled=True, save_dir=tmp_path), LOGGER)
    probe.observe(lambda: batch(0.5), step=1)
    wait_for(probe)
    assert [step.name.step for step in analyze_folder(tmp_path).steps] == [1]


def test_strict_stays_in_the_call(everything_is_large: None) -> None:
    probe = StepProbe(ProbeConfig(enabled=True, strict=True), LOGGER)
    assert probe.observe(lambda: batch(0.5), step=1)["mismatch/k1"] == pytest.approx(0.5)


def test_a_step_of_two_million_tokens_costs_the_host_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    large = batch(0.01, 256, 8192)
    probe = StepProbe(CONFIG, LOGGER)
    spent = []
    for step in range(4):
        before = time.thread_time()  # what other processes take on this machine is not ours
        probe.observe(lambda: large, step=step)
        spent.append(time.thread_time() - before)
        wait_for(probe)
    assert min(spent) < 0.05, spent
