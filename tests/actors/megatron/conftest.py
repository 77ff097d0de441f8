from __future__ import annotations

import os
from pathlib import Path

import pytest

# Spawned processes inherit it: the first compiled cross-entropy of Megatron-Core would cost each of them 10 s.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model folder of every supported family."""
    from tests.support.tiny_families import FAMILIES, save_family

    root = tmp_path_factory.mktemp("families")
    return {name: save_family(root / name, name) for name in FAMILIES}
