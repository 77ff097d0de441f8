"""Settings of the per-token comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from logparity.errors import InputError


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """What the probe does on every step; off by default, and free when off.

    Args:
        enabled: compare rollout and train log-probs on every step.
        save_dir: folder for the ``.npy`` pairs; None writes no files.
        token_max_print: positions per sample in the grid of scalar metrics.
        sample_max_print: samples in the grid.
        strict: raise where the probe cannot do its work, in place of one warning; for tests and debugging.

    Raises:
        InputError: a grid size is negative.
    """

    enabled: bool = False
    save_dir: Path | None = None
    token_max_print: int = 10
    sample_max_print: int = 8
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("token_max_print", "sample_max_print"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}: expected an integer >= 0, got {getattr(self, name)}. 0 leaves the grid out.")


__all__ = ["ProbeConfig"]
