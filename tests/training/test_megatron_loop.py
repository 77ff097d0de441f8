"""The same loop on Megatron-Core under torchrun: one driver writes, every rank computes, the numbers stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logparity.cli import main

pytestmark = pytest.mark.distributed
FP32 = ["--rollout.dtype", "float32", "--actor.dtype", "float32"]


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    return subprocess.run(
        [*command, "-m", "logparity", "train", *arguments],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def read(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_two_pipeline_stages_give_the_metrics_of_one_process_and_resume(tiny_config: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "run", tmp_path / "two"
    assert main(["train", str(tiny_config), *FP32, "--run.steps", "2"]) == 0
    spread = [*FP32, "--run.folder", str(two), "--actor.backend", "megatron", "--actor.megatron.pipeline", "2"]
    for flags in (["--run.steps", "1"], ["--run.steps", "2", "--resume"]):
        result = torchrun(2, str(tiny_config), *spread, *flags)
        assert result.returncode == 0, result.stderr[-3000:]
    assert (two / "report.html").exists()
    assert len(list((two / "rollouts").iterdir())) == 2
    expected, got = read(one), read(two)
    assert [line["step"] for line in got] == [1, 2]
    for a, b in zip(expected, got, strict=True):
        for name in ("reward/mean", "response_length/mean", "training/rollout_probs_diff_valid"):
            assert a[name] == b[name]
        for name in ("actor/entropy", "actor/loss", "kl/reference"):
            assert b[name] == pytest.approx(a[name], abs=1e-4)
        assert b["actor/grad_norm"] == pytest.approx(a["actor/grad_norm"], rel=1e-3)
        assert b["training/rollout_probs_diff_mean"] < 1e-5


def test_an_error_of_the_driver_ends_every_rank(tiny_config: Path) -> None:
    flags = ["--actor.backend", "megatron", "--actor.megatron.pipeline", "2"]
    result = torchrun(2, str(tiny_config), *flags, "--reward", "tests.training.test_loop:always_nan")
    assert result.returncode != 0
    assert "expected a finite number, got nan" in result.stderr


def test_several_processes_need_the_backend_for_them(tiny_config: Path) -> None:
    result = torchrun(2, str(tiny_config))
    assert result.returncode != 0
    assert "actor.backend = 'hf' runs in one process, and 2 were started" in result.stderr
