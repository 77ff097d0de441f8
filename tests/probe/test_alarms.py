"""Alarms: which rule fires when, what evidence stays, whom it tells, and that telling cannot hurt."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logparity.errors import AlarmError, InputError
from logparity.probe import AlarmConfig, AlarmRule, Probe, ProbeConfig, RuleKind, open_run
from logparity.probe.alarms import PRESETS
from logparity.probe.alarms.watch import AlarmWatch
from tests.support.rollouts import PAIRS


def fired(rule: AlarmRule, values: list[float]) -> list[int]:
    watch = AlarmWatch([rule])
    return [step for step, value in enumerate(values) if watch.look(step, 0, {rule.metric: value})]


def test_a_limit_fires_once_until_it_was_not_met() -> None:
    rule = AlarmRule("a", "m", RuleKind.ABOVE, 1.0)
    assert fired(rule, [0.5, 1.0, 1.1, 1.2, 0.9, 2.0]) == [2, 5]
    assert fired(AlarmRule("a", "m", RuleKind.BELOW, 1.0), [1.0, 0.9, 0.8, 1.0, 0.1]) == [1, 4]


def test_a_baseline_is_the_runs_own_start() -> None:
    rule = AlarmRule("a", "m", RuleKind.OVER_BASELINE, 2.0, window=4)
    # An FP8 run sits at 0.015 and stays there: no alarm. One outlier at the start does not spoil the median.
    assert fired(rule, [0.015, 0.2, 0.014, 0.015, 0.016, 0.029, 0.031]) == [6]
    assert fired(AlarmRule("a", "m", RuleKind.UNDER_BASELINE, 0.7, window=3), [0.9, 0.9, 0.9, 0.8, 0.6]) == [4]


def test_a_trend_is_steady_and_large_enough() -> None:
    rule = AlarmRule("a", "m", RuleKind.RISING, 1.5, window=6)
    assert fired(rule, [1, 1.1, 1.2, 1.3, 1.4, 1.5]) == []
    assert fired(rule, [1, 1.2, 1.4, 1.6, 1.9, 2.2]) == [5]
    assert fired(rule, [1, 3, 1, 3, 1, 3, 1, 3, 1]) == []


def run_dump(name: str, tmp_path: Path, alarms: AlarmConfig, steps: int = 1) -> dict[str, float]:
    data = np.load(PAIRS / f"{name}.npz", allow_pickle=False)
    probe = Probe(ProbeConfig(enabled=True, background=False, run_dir=tmp_path, alarms=alarms))
    for step in range(steps):
        probe.observe(step=step, **{key: data[key] for key in ("rollout_log_probs", "old_log_probs", "response_mask")})
    got = probe.flush()
    probe.close()
    return got


def alarm_keys(metrics: dict[str, float]) -> set[str]:
    return {key.removeprefix("probe/alarm/") for key in metrics if key.startswith("probe/alarm/")}


EVERY_PRESET = AlarmConfig(presets=tuple(PRESETS))


def test_a_clean_pair_of_bf16_engines_has_no_problem(tmp_path: Path) -> None:
    got = run_dump("clean_vllm_bf16_vs_hf_bf16", tmp_path, EVERY_PRESET, steps=14)
    assert alarm_keys(got) == {"verl.prob_diff_notice"}
    assert got["probe/alarms"] == 1


@pytest.mark.parametrize("name", ["bug_off_by_one", "stale_weights_noise0.02", "bug_temperature_raw_vs_scaled"])
def test_a_broken_pair_has(name: str, tmp_path: Path) -> None:
    assert "verl.prob_diff" in alarm_keys(run_dump(name, tmp_path, EVERY_PRESET))


def test_the_evidence_names_value_limit_source_and_places(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dump("bug_off_by_one", tmp_path, AlarmConfig(), steps=3)
    evidence = open_run(tmp_path).alarms()
    assert [row["alarm"]["step"] for row in evidence] == [0] * len(evidence)
    row = next(row for row in evidence if row["alarm"]["name"] == "verl.prob_diff")
    assert row["alarm"]["value"] == row["metrics"]["mismatch/prob_diff_mean"] > row["alarm"]["threshold"] == 0.01
    assert "verl" in row["alarm"]["source"]
    assert row["worst_sequences"]
    assert "mismatch/prob_diff_mean" in caplog.text


def test_a_command_and_a_webhook_get_the_evidence(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    out = tmp_path / "out.json"
    command = (sys.executable, "-c", f"import sys; open({str(out)!r}, 'w').write(sys.stdin.read())")
    rule = AlarmRule("mine", "mismatch/tokens", RuleKind.ABOVE, 0)
    address = f"http://127.0.0.1:{server.server_port}/"
    try:
        config = AlarmConfig(presets=(), rules=(rule,), webhook=address, command=command)
        run_dump("clean_vllm_bf16_vs_hf_bf16", tmp_path / "run", config, steps=2)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [row["alarm"]["name"] for row in got] == ["mine"]
    assert json.loads(out.read_text())["alarm"] == got[0]["alarm"]
    assert open_run(tmp_path / "run").alarms()[0]["not_told"] == []


def test_nobody_home_is_noted_and_the_run_goes_on(tmp_path: Path) -> None:
    rule = AlarmRule("mine", "mismatch/tokens", RuleKind.ABOVE, 0)
    config = AlarmConfig(presets=(), rules=(rule,), webhook="http://127.0.0.1:9/", command=("/no/such/program",))
    got = run_dump("clean_vllm_bf16_vs_hf_bf16", tmp_path, config, steps=2)
    assert got["probe/alarm/mine"] == 1
    assert "probe/failed_calls" not in got
    told = open_run(tmp_path).alarms()[0]["not_told"]
    assert [text.split(":")[0] for text in told] == ["webhook", "command"]


@pytest.mark.parametrize("background", [True, False])
def test_strict_alarms_stop_the_run_at_the_next_call(background: bool) -> None:
    probe = Probe(ProbeConfig(enabled=True, background=background, alarms=AlarmConfig(strict=True)))
    bad = {"rollout_log_probs": [[-0.1] * 9], "old_log_probs": [[-4.0] * 9]}
    probe.observe(step=0, **bad)
    with pytest.raises(AlarmError, match=r"verl\.prob_diff: mismatch/prob_diff_mean"):
        probe.flush()
    probe.close()


def test_rules_that_cannot_be_are_refused() -> None:
    for make, message in (
        (lambda: AlarmConfig(presets=("nobody",)), "one of verl"),
        (lambda: AlarmConfig(rules=(AlarmRule("verl.ess", "m", RuleKind.ABOVE, 1),)), "repeated"),
        (lambda: AlarmConfig(webhook="file:///etc/passwd"), "http"),
        (lambda: AlarmRule("../x", "m", RuleKind.ABOVE, 1), "ASCII letters"),
        (lambda: AlarmRule("x", "m", RuleKind.RISING, 1, window=2), "at least 3"),
    ):
        with pytest.raises(InputError, match=message):
            make()
