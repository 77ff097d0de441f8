from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def without_compilation() -> Iterator[None]:
    """Here and in the processes spawned from here, and nowhere else.

    The first compiled cross-entropy of Megatron-Core would cost each process 10 s.
    """
    with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(disable=True):
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        yield


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model folder of every supported family."""
    from tests.support.tiny_families import FAMILIES, save_family

    root = tmp_path_factory.mktemp("families")
    return {name: save_family(root / name, name) for name in FAMILIES}
