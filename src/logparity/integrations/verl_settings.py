"""What a verl configuration asks of the comparison, and whether verl will give it what it needs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logparity.errors import ConfigError

if TYPE_CHECKING:  # a run that leaves the comparison off does not pay for these imports
    from logparity.probe.config import ProbeConfig

SWITCH = "enable_token_level_prob_diff"
SAVE_DIR = "prob_diff_save_dir"
TOKENS = "prob_diff_token_max_print"
SAMPLES = "prob_diff_sample_max_print"
RUN_DIR = "prob_diff_run_dir"
KEYS = (SWITCH, SAVE_DIR, TOKENS, SAMPLES, RUN_DIR)


def lookup(config: Any, path: str) -> Any:
    """Value at a dotted path of nested mappings; None where a part is missing or null."""
    for part in path.split("."):
        if config is None or not hasattr(config, "get"):
            return None
        config = config.get(part, None)
    return config


def enabled(config: Any) -> bool:
    """Whether ``trainer.enable_token_level_prob_diff`` is on."""
    value = lookup(config, f"trainer.{SWITCH}")
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


def settings(config: Any) -> ProbeConfig:
    """Settings of the comparison from the ``trainer`` group.

    Args:
        config: verl's whole configuration, as OmegaConf or plain mappings.

    Returns:
        The settings.

    Raises:
        ConfigError: a value is of the wrong kind, named by its key.
        InputError: a grid size is negative.
    """
    from logparity.probe.config import ProbeConfig

    return ProbeConfig(
        enabled=enabled(config),
        save_dir=_folder(config, SAVE_DIR),
        run_dir=_folder(config, RUN_DIR),
        token_max_print=_size(config, TOKENS, 10),
        sample_max_print=_size(config, SAMPLES, 8),
    )


def misspelt(config: Any) -> list[str]:
    """Keys of the ``trainer`` group that are nearly, but not quite, one of ours, each with the right one."""
    trainer = lookup(config, "trainer")
    if not isinstance(trainer, Mapping) and not hasattr(trainer, "keys"):
        return []
    notes = []
    for key in trainer:
        near = difflib.get_close_matches(str(key), KEYS, n=1, cutoff=0.85)
        if near and key not in KEYS:
            notes.append(f"trainer.{key} is no setting: did you mean trainer.{near[0]}?")
    return notes


def obstacles(config: Any) -> list[str]:
    """Why verl will have nothing to compare under this configuration, each with the fix; empty where it will."""
    found = []
    if not lookup(config, "actor_rollout_ref.rollout.calculate_log_probs"):
        found.append(
            "the rollout engine's log-probs are not asked for: set actor_rollout_ref.rollout.calculate_log_probs=True"
        )
    if lookup(config, "algorithm.rollout_correction.bypass_mode"):
        found.append(
            "algorithm.rollout_correction.bypass_mode=True takes the rollout's log-probs for the trainer's, so the "
            "two sides are one: set it to False"
        )
    return found


def _folder(config: Any, key: str) -> Path | None:
    value = lookup(config, f"trainer.{key}")
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"trainer.{key}: expected a folder or null, got {value!r}.")
    return Path(value) if value else None


def _size(config: Any, key: str, default: int) -> int:
    value = lookup(config, f"trainer.{key}")
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"trainer.{key}: expected an integer >= 0, got {value!r}.")
    return value


__all__ = ["KEYS", "enabled", "lookup", "misspelt", "obstacles", "settings"]
