"""What a training loop tells whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class View(Protocol):
    """Receives progress; never changes the run."""

    def start(self, folder: Path, first_step: int, steps: int) -> None:
        """The run is about to take its first step."""
        ...

    def stage(self, step: int, name: str, done: int, total: int) -> None:
        """Part of a step has got ``done`` of ``total`` items through."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is finished."""
        ...

    def message(self, text: str) -> None:
        """Something the user should read."""
        ...


class SilentView:
    """Shows nothing."""

    def start(self, folder: Path, first_step: int, steps: int) -> None:
        """Ignore the start."""

    def stage(self, step: int, name: str, done: int, total: int) -> None:
        """Ignore progress."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Ignore a finished step."""

    def message(self, text: str) -> None:
        """Ignore a message."""
