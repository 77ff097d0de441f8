"""A configuration file with a mistake says which, and the nearest right name."""

from __future__ import annotations

from pathlib import Path

import pytest

from logparity.errors import ConfigError
from logparity.training.config import load_config


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "[run]\nsteps = 3\nseed = 5\n[probe]\nenabled = true\n")
    config = load_config(path, {"run": {"steps": 7}, "probe": {"save_dir": Path("x")}})
    assert (config.run.steps, config.run.seed, config.run.keep_checkpoints) == (7, 5, 2)
    assert config.probe.enabled
    assert config.probe.save_dir == Path("x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[probe]\nsafe_dir = 'x'", r"unknown key 'probe\.safe_dir'.*Did you mean 'probe\.save_dir'"),
        ("[rolout]\ndtype = 'float32'", r"unknown key 'rolout'.*Did you mean 'rollout'"),
        ("[rollout]\ntemperature = 0.0", r"rollout\.temperature.*greater than 0, got 0\.0"),
        ("[rollout]\ntemperature = nan", r"rollout\.temperature"),
        ("[run]\nsteps = 'many'", r"run\.steps"),
        ("[run\n", "not valid TOML"),
        ("[actor]\noptimizer_steps_per_rollout = 5", r"must divide the samples of a step.* = 32"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: expected a TOML file, found none"):
        load_config(tmp_path / "nowhere.toml")


def test_every_example_is_valid() -> None:
    examples = sorted(Path("examples").glob("*.toml"))
    assert examples
    for path in examples:
        load_config(path)
