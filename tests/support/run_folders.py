"""Run folders as the training loop leaves them, made from an engine dump."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from logparity.probe import ProbeConfig, TokenProbe, write_rollouts
from tests.support.rollouts import PAIRS, rollouts_of_dump

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\u202eevil\u2028",
    "\x1b[31m",
    "{{ 7 * 7 }}",
)
"""Token texts that must show as what they are."""


def make_run(folder: Path, steps: int = 3, texts: tuple[str, ...] = ()) -> Path:
    """Metrics, pairs, rollouts, and configuration of a few steps; ``texts`` stand first in the first response."""
    dump = PAIRS / "clean_vllm_bf16_vs_hf_bf16.npz"
    folder.mkdir(parents=True, exist_ok=True)
    probe = TokenProbe(ProbeConfig(enabled=True, save_dir=folder / "prob_diff", strict=True))
    lines = []
    for step in range(1, steps + 1):
        rollouts, scored = rollouts_of_dump(dump)
        metrics = probe.observe(rollouts, scored, step=step)
        tokens = [[f" w{i % 97}" for i in r.response_ids] for r in rollouts]
        tokens[0][: len(texts)] = texts
        rewards = [float(i == 0) + step / 10 for i in range(len(rollouts))]
        path = folder / "rollouts" / f"step_{step:06d}.parquet"
        write_rollouts(path, step, rollouts, scored, rewards, [0.0] * len(rollouts), tokens)
        lines.append(json.dumps({"step": step, "reward/mean": float(np.mean(rewards)), "actor/loss": 0.1, **metrics}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.json").write_text(json.dumps({"model": {"path": "a <b>model</b>"}, "seed": 7}))
    return folder
