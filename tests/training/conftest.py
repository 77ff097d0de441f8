"""A small run: two-layer random model, a few short responses a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_models import save_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def tiny_config(tiny_model: Path, tmp_path: Path) -> Path:
    """A configuration file of six quick steps whose run folder is ``tmp_path / "run"``."""
    path = tmp_path / "tiny.toml"
    path.write_text(
        f"""
        model = "{tiny_model}"
        [run]
        folder = "{tmp_path / "run"}"
        steps = 6
        checkpoint_every = 2
        [rollout]
        prompts_per_step = 2
        group_size = 3
        max_new_tokens = 6
        [actor]
        optimizer_steps_per_rollout = 2
        [optimizer]
        learning_rate = 1e-3
        [probe]
        enabled = true
        save_dir = "{{run}}/prob_diff"
        [algorithm]
        kl_coefficient = 0.01
        """,
        encoding="utf-8",
    )
    return path
