"""The same loop on Megatron-Core under torchrun: one driver writes, every rank computes, the numbers stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.two_ranks import check_two_ranks, torchrun

pytestmark = pytest.mark.distributed


def test_two_pipeline_stages_give_the_metrics_of_one_process_and_resume(tiny_config: Path, tmp_path: Path) -> None:
    check_two_ranks(tiny_config, tmp_path, "--actor.backend", "megatron", "--actor.megatron.pipeline", "2")


def test_an_error_of_the_driver_ends_every_rank(tiny_config: Path) -> None:
    flags = ["--actor.backend", "megatron", "--actor.megatron.pipeline", "2"]
    result = torchrun(2, str(tiny_config), *flags, "--reward", "tests.training.test_loop:always_nan")
    assert result.returncode != 0
    assert "expected a finite number, got nan" in result.stderr


def test_several_processes_need_the_backend_for_them(tiny_config: Path) -> None:
    result = torchrun(2, str(tiny_config))
    assert result.returncode != 0
    assert "actor.backend = 'hf' runs in one process, and 2 were started" in result.stderr
