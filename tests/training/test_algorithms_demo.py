"""Every family of algorithms takes five steps on the embedded 135M model: minutes, so outside CI."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from logparity.cli import main

ALGORITHMS = {
    "grpo": "policy/ratio",
    "gspo": "policy/clip_fraction",
    "cispo": "policy/ratio",
    "rloo": "policy/ratio",
    "reinforce++": "policy/ratio",
    "ppo": "critic/loss",
    "sft": "sft/log_prob",
}


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", ALGORITHMS)
def test_five_steps_on_the_demo_model(name: str, tmp_path: Path) -> None:
    flags = ["--run.folder", str(tmp_path / "run"), "--run.steps", "5", "--probe.save-dir", str(tmp_path / "pairs")]
    flags += ["--rollout.group-size", "4", "--algorithm.name", name]
    flags += ["--task.name", "arithmetic"] if name == "sft" else []
    assert main(["train", "examples/grpo_cpu.toml", *flags]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    for line in lines:
        assert ALGORITHMS[name] in line
        assert line["actor/skipped_steps"] == 0
        assert all(math.isfinite(value) for value in line.values())
    if name == "sft":
        assert lines[-1]["actor/loss"] < lines[0]["actor/loss"]
    else:
        assert 1e-4 < lines[-1]["training/rollout_probs_diff_mean"] < 2e-2
