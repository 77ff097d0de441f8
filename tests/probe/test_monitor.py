"""The probe for other trainers: what it returns, when, and that it never harms the run."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logparity.errors import InputError
from logparity.probe import Probe, ProbeConfig, StoreConfig, calculate_debug_metrics, open_run
from logparity.probe.pipeline import Pipeline
from tests.support.mismatch_truth import mismatch_truth
from tests.support.rollouts import PAIRS

DUMP = dict(np.load(PAIRS / "clean_vllm_bf16_vs_hf_bf16.npz", allow_pickle=False))
BATCH = {name: DUMP[name] for name in ("rollout_log_probs", "old_log_probs", "response_mask")}


def small(value: float = -1.0, count: int = 3) -> dict[str, Any]:
    return {"rollout_log_probs": [[value] * count], "old_log_probs": [[value - 0.125] * count]}


def test_inline_the_metrics_of_the_call_come_back_at_once() -> None:
    got = Probe(ProbeConfig(enabled=True, background=False, strict=True)).observe(step=5, **BATCH)
    mask = DUMP["response_mask"].astype(bool)
    rows = [(r[m], t[m]) for r, t, m in zip(DUMP["rollout_log_probs"], DUMP["old_log_probs"], mask, strict=True)]
    for key, value in mismatch_truth(rows).items():
        assert got[key] == pytest.approx(value, rel=1e-9, abs=1e-12), key
    for key, value in calculate_debug_metrics(DUMP).items():
        assert got[key] == pytest.approx(value, abs=1e-6), key
    assert got["training/rollout_probs_diff/s7_p0009"] == pytest.approx(
        abs(np.exp(DUMP["rollout_log_probs"][7, 9]) - np.exp(DUMP["old_log_probs"][7, 9])), abs=1e-7
    )
    assert (got["probe/metrics_step"], got["probe/steps_late"]) == (5, 0)


def test_in_the_background_metrics_come_late_and_say_so() -> None:
    probe = Probe(ProbeConfig(enabled=True, strict=True))
    assert probe.observe(step=1, **small()) == {}
    got: dict[str, float] = {}
    deadline = time.monotonic() + 20
    step = 2
    while not got and time.monotonic() < deadline:
        got = probe.observe(step=step, **small())
        step += 1
        time.sleep(0.05)
    assert got["mismatch/k1"] == 0.125
    assert got["probe/steps_late"] == step - 1 - got["probe/metrics_step"] > 0
    last = probe.flush()
    assert last["probe/metrics_step"] == step - 1
    probe.close()


def test_calls_of_a_step_add_up_and_sub_steps_stay_apart(tmp_path: Path) -> None:
    probe = Probe(ProbeConfig(enabled=True, run_dir=tmp_path, strict=True))
    rows = range(32)
    for start in range(0, 32, 8):
        part = {name: values[start : start + 8] for name, values in BATCH.items()}
        probe.observe(step=0, keys=list(rows[start : start + 8]), **part)
    probe.observe(step=0, sub_step=1, **small())
    probe.close()
    steps = open_run(tmp_path).steps
    assert [(s.step, s.sub_step) for s in steps] == [(0, 0), (0, 1)]
    whole = Probe(ProbeConfig(enabled=True, background=False)).observe(step=0, keys=list(rows), **BATCH)
    for key, value in steps[0].metrics.items():
        assert value == whole[key], key


def test_disabled_it_touches_nothing(tmp_path: Path) -> None:
    probe = Probe(ProbeConfig(run_dir=tmp_path / "run"))
    assert probe.observe(step=0, rollout_log_probs=object(), old_log_probs=None) == {}
    probe.close()
    assert not (tmp_path / "run").exists()
    assert probe._thread is None


def test_a_call_that_makes_no_sense_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    probe = Probe(ProbeConfig(enabled=True))
    for step in range(3):
        probe.observe(step=step, rollout_log_probs=[[-1.0], [-1.0]], old_log_probs=[[-1.0]])
        probe.observe(step=step, rollout_log_probs=None, old_log_probs=[[-1.0]])
    got = probe.flush()
    assert got["probe/failed_calls"] == 6
    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text
    probe.close()


def test_missing_rollout_log_probs_name_the_setting() -> None:
    probe = Probe(ProbeConfig(enabled=True, strict=True, background=False))
    with pytest.raises(InputError, match=r"calculate_log_probs=True"):
        probe.observe(step=0, rollout_log_probs=None, old_log_probs=[[-1.0]])


def test_strict_errors_of_the_thread_reach_the_caller() -> None:
    probe = Probe(ProbeConfig(enabled=True, strict=True))
    probe.observe(step=0, rollout_log_probs=[[-1.0], [-1.0]], old_log_probs=[[-1.0]])
    with pytest.raises(InputError, match="2 rows"):
        probe.flush()
    probe.close()


def test_inputs_random_state_and_threads_are_left_as_they_were() -> None:
    before = {name: values.copy() for name, values in BATCH.items()}
    state = np.random.get_state()[1].tolist()  # noqa: NPY002 - the global generator is what must not move
    threads = threading.active_count()
    probe = Probe(ProbeConfig(enabled=True, strict=True))
    for step in range(3):
        probe.observe(step=step, **BATCH)
    probe.close()
    for name, values in before.items():
        np.testing.assert_array_equal(BATCH[name], values)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    assert threading.active_count() == threads


def test_a_writer_slower_than_the_trainer_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    work = Pipeline.call

    def slow(self: Pipeline, *arguments: Any) -> None:
        gate.wait(20)
        work(self, *arguments)

    monkeypatch.setattr(Pipeline, "call", slow)
    probe = Probe(ProbeConfig(enabled=True, run_dir=tmp_path, queue_calls=2))
    begin = time.monotonic()
    for step in range(10):
        probe.observe(step=step, **small())
    assert time.monotonic() - begin < 5
    gate.set()
    deadline = time.monotonic() + 20
    while probe._queue.qsize() and time.monotonic() < deadline:
        time.sleep(0.01)
    probe.observe(step=10, **small())
    got = probe.flush()
    probe.close()
    written = open_run(tmp_path).units
    assert got["probe/dropped_calls"] == 11 - len(written) > 0
    assert sum(unit.dropped_calls for unit in written) == got["probe/dropped_calls"]


def test_a_probe_can_be_sent_to_another_process() -> None:
    probe = Probe(ProbeConfig(enabled=True, background=False, store=StoreConfig(samples=1)))
    probe.observe(step=0, **small())
    assert pickle.loads(pickle.dumps(probe)).observe(step=0, **small())["mismatch/tokens"] == 3


def test_nothing_that_is_not_finite_reaches_a_tracker() -> None:
    bad = np.asarray([[np.nan, np.inf, -np.inf, -1e30, 0.0, 5.0]] * 2)
    got = Probe(ProbeConfig(enabled=True, background=False, strict=True)).observe(
        step=0, rollout_log_probs=bad, old_log_probs=bad[:, ::-1], response_mask=np.ones_like(bad)
    )
    assert np.isfinite(list(got.values())).all()
    assert got["mismatch/tokens"] == 0
    assert got["mismatch/excluded_tokens"] == 12


def test_the_pairs_of_npy_files_are_still_written(tmp_path: Path) -> None:
    probe = Probe(ProbeConfig(enabled=True, save_dir=tmp_path, strict=True))
    probe.observe(step=3, keys=[f"k{i}" for i in range(32)], **BATCH)
    probe.observe(step=3, sub_step=1, **BATCH)
    probe.close()
    diff, mask = np.load(tmp_path / "prob_diff_step_3.npy"), np.load(tmp_path / "prob_mask_step_3.npy")
    np.testing.assert_array_equal(mask, DUMP["response_mask"].astype(bool))
    exact = np.abs(np.exp(DUMP["rollout_log_probs"].astype(float)) - np.exp(DUMP["old_log_probs"].astype(float)))
    np.testing.assert_allclose(diff[mask], exact[mask], atol=1e-6)
    assert (diff[~mask] == 0).all()
    assert (tmp_path / "prob_diff_step_3_sub1.npy").exists()
