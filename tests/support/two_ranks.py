"""The training loop over two ranks of torchrun, held to one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logparity.cli import main

_FP32 = ["--rollout.dtype", "float32", "--actor.dtype", "float32"]


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``logparity train`` on several ranks of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    return subprocess.run(
        [*command, "-m", "logparity", "train", *arguments],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def check_two_ranks(config: Path, tmp_path: Path, *backend: str) -> None:
    """Two steps on two ranks, resumed in between, give the metrics of one process; only the driver writes."""
    one, two = tmp_path / "run", tmp_path / "two"
    assert main(["train", str(config), *_FP32, "--run.steps", "2"]) == 0
    spread = [*_FP32, "--run.folder", str(two), *backend]
    for flags in (["--run.steps", "1"], ["--run.steps", "2", "--resume"]):
        result = torchrun(2, str(config), *spread, *flags)
        assert result.returncode == 0, result.stderr[-3000:]
    assert (two / "report.html").exists()
    assert len(list((two / "rollouts").iterdir())) == 2
    expected, got = _read(one), _read(two)
    assert [line["step"] for line in got] == [1, 2]
    for a, b in zip(expected, got, strict=True):
        for name in ("reward/mean", "response_length/mean", "training/rollout_probs_diff_valid"):
            assert a[name] == b[name]
        for name in ("actor/entropy", "actor/loss", "kl/reference"):
            assert b[name] == pytest.approx(a[name], abs=1e-4)
        assert b["actor/grad_norm"] == pytest.approx(a["actor/grad_norm"], rel=1e-3)
        assert b["training/rollout_probs_diff_mean"] < 1e-5


def _read(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
