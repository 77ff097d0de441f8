from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer random Llama with tied embeddings and a byte tokenizer, as a model folder."""
    from tests.support.tiny_models import save_tiny_llama

    return save_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def untied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an LM head of its own."""
    from tests.support.tiny_models import save_tiny_llama

    return save_tiny_llama(tmp_path_factory.mktemp("untied") / "llama", tied=False, seed=1)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded 135M model from the user's cache."""
    from logparity.models import prepare_smollm2

    return prepare_smollm2()
