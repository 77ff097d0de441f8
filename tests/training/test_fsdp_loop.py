"""The same loop on Transformers under FSDP2 and torchrun: one driver writes, every rank computes, the numbers stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from logparity.errors import ConfigError
from logparity.training.config import load_config
from tests.support.two_ranks import check_two_ranks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("tensor", [1, 2])
def test_two_ranks_give_the_metrics_of_one_process_and_resume(tiny_config: Path, tmp_path: Path, tensor: int) -> None:
    check_two_ranks(tiny_config, tmp_path, "--actor.backend", "fsdp", "--actor.fsdp.tensor", str(tensor))


@pytest.mark.parametrize(("section", "key", "value"), [("actor", "dtype", "float16"), ("algorithm", "name", "ppo")])
def test_what_the_backend_lacks_is_refused_before_anything_starts(
    tiny_config: Path, section: str, key: str, value: str
) -> None:
    over = {"actor": {"backend": "fsdp"}}
    over.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError, match=f"{value}.*needs .*'fsdp' has not"):
        load_config(tiny_config, over)
