"""The same loop on Transformers under FSDP2 and torchrun: one driver writes, every rank computes, the numbers stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from logparity.cli import main
from logparity.errors import ConfigError
from logparity.training.config import load_config
from tests.training.test_megatron_loop import FP32, read, torchrun

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("tensor", [1, 2])
def test_two_ranks_give_the_metrics_of_one_process_and_resume(tiny_config: Path, tmp_path: Path, tensor: int) -> None:
    one, two = tmp_path / "run", tmp_path / "two"
    assert main(["train", str(tiny_config), *FP32, "--run.steps", "2"]) == 0
    spread = [*FP32, "--run.folder", str(two), "--actor.backend", "fsdp", "--actor.fsdp.tensor", str(tensor)]
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


@pytest.mark.parametrize(("section", "key", "value"), [("actor", "dtype", "float16"), ("algorithm", "name", "ppo")])
def test_what_the_backend_lacks_is_refused_before_anything_starts(
    tiny_config: Path, section: str, key: str, value: str
) -> None:
    over = {"actor": {"backend": "fsdp"}}
    over.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError, match=f"{value}.*needs .*'fsdp' has not"):
        load_config(tiny_config, over)
