"""Checkpoints of a run: written whole or not at all, the newest few kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from logparity.errors import RunFolderError
from logparity.training.world import World

_STATE = "loop.json"


class Stateful(Protocol):
    """What a checkpoint holds: an actor, a critic."""

    def save_checkpoint(self, folder: Path) -> None:
        """Write the state into an existing, empty folder."""
        ...

    def load_checkpoint(self, folder: Path) -> None:
        """Restore it."""
        ...


def save_checkpoint(folder: Path, step: int, states: Mapping[str, Stateful], keep: int, world: World) -> Path:
    """Write a checkpoint beside the others, then drop the oldest; every rank calls it.

    Args:
        folder: where checkpoints lie; every rank sees it.
        step: last finished step.
        states: parts of the run by name; each writes its own folder.
        keep: newest checkpoints kept, >= 1.
        world: the processes of the run; the driver makes and renames folders.

    Returns:
        The new checkpoint's folder.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written; earlier checkpoints are untouched.
    """
    target, scratch = folder / f"step_{step:06d}", folder / f".step_{step:06d}.tmp"
    try:
        world.share(lambda: _prepare(scratch, states))
        for name, part in states.items():
            part.save_checkpoint(scratch / name)
        world.share(lambda: _publish(scratch, target, step, keep))
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise RunFolderError(
            f"Checkpoint {target}: cannot be written ({error.strerror or error}). "
            "Free some space and pass --resume: earlier checkpoints are whole."
        ) from error
    return target


def _prepare(scratch: Path, states: Mapping[str, Stateful]) -> None:
    """Remove what a killed run left half-written, and make the folders."""
    for leftover in scratch.parent.glob(".step_*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    for name in states:
        (scratch / name).mkdir(parents=True)


def _publish(scratch: Path, target: Path, step: int, keep: int) -> None:
    """Give a finished checkpoint its name, and drop the oldest."""
    (scratch / _STATE).write_text(json.dumps({"step": step}) + "\n", encoding="utf-8")
    if target.exists():
        shutil.rmtree(target)
    scratch.rename(target)
    for old in list_checkpoints(target.parent)[:-keep]:
        shutil.rmtree(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first.

    Args:
        folder: where checkpoints lie.

    Returns:
        Their folders, by step.
    """
    return sorted(path.parent for path in folder.glob(f"step_*/{_STATE}"))


def load_checkpoint(checkpoint: Path, states: Mapping[str, Stateful]) -> int:
    """Restore the parts of a run.

    Args:
        checkpoint: folder of one checkpoint.
        states: parts of the run by name, as they were saved.

    Returns:
        The last finished step.
    """
    for name, part in states.items():
        part.load_checkpoint(checkpoint / name)
    return int(json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["step"])
