"""The folder of a run: who may write into it, and where each thing lies."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from logparity import __version__
from logparity.errors import RunFolderError
from logparity.probe.atomic import atomic_file

_MARK = "logparity_version"


class Existing(Enum):
    """What to do with a run folder that exists."""

    REFUSE = "refuse"
    RESUME = "resume"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside a run folder.

    Args:
        root: the folder.
    """

    root: Path

    @property
    def config(self) -> Path:
        """Resolved configuration (JSON)."""
        return self.root / "config.json"

    @property
    def metrics(self) -> Path:
        """One JSON object per step."""
        return self.root / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """Folder of the Parquet files, one per step."""
        return self.root / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints, one folder each."""
        return self.root / "checkpoints"

    @property
    def replaced(self) -> Path:
        """Where a run that this one replaces waits until this one has taken a step."""
        return self.root.with_name(f".{self.root.name}.replaced")

    def rollouts_of(self, step: int) -> Path:
        """Parquet file of one step's rollouts."""
        return self.rollouts / f"step_{step:06d}.parquet"


def check_run_folder(root: Path, config: dict[str, Any], existing: Existing) -> None:
    """Find out whether a run may use a folder, before anything is computed and without changing it.

    Args:
        root: the folder.
        config: resolved configuration, JSON-ready; compared on resume.
        existing: what to do where the folder holds a run that has taken a step.

    Raises:
        RunFolderError: the folder holds a run and may not be touched, is no run folder, cannot be written, or was made
            with another configuration.
    """
    run = RunFolder(root)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        earlier = _read_config(run)
        if _has_taken_a_step(run):
            _require_permission(run, earlier, config, existing)
    _require_writable(root)


def open_run_folder(root: Path, config: dict[str, Any], existing: Existing) -> RunFolder:
    """Create a run folder, or take an existing one, as `check_run_folder` allowed.

    A run that is replaced is moved aside; `forget_replaced` removes it once the new run has taken a step, and
    `restore_replaced` puts it back where it has not.

    Args:
        root: the folder.
        config: resolved configuration, JSON-ready; kept in the folder.
        existing: what to do where the folder holds a run that has taken a step.

    Returns:
        The folder's paths.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    run = RunFolder(root)
    try:
        if existing is Existing.OVERWRITE and _has_taken_a_step(run):
            shutil.rmtree(run.replaced, ignore_errors=True)
            root.rename(run.replaced)
        for folder in (root, run.rollouts, run.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        marked = {_MARK: __version__, **config}
        with atomic_file(run.config) as file:
            file.write((json.dumps(marked, indent=2, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise _cannot_write(root, error) from None
    return run


def forget_replaced(run: RunFolder) -> None:
    """Remove the run that this one replaced, if there is one."""
    shutil.rmtree(run.replaced, ignore_errors=True)


def restore_replaced(run: RunFolder) -> None:
    """Put the replaced run back, if there is one: the new one failed before its first step."""
    if run.replaced.exists():
        shutil.rmtree(run.root)
        run.replaced.rename(run.root)


def _require_permission(run: RunFolder, earlier: dict[str, Any], config: dict[str, Any], existing: Existing) -> None:
    if existing is Existing.REFUSE:
        raise RunFolderError(
            f"Run folder {run.root} exists. Pass --resume to go on with it, --overwrite to replace it, or set "
            "run.folder."
        )
    if existing is Existing.RESUME:
        _require_same_config(run, earlier, config)


def _has_taken_a_step(run: RunFolder) -> bool:
    """Whether there is anything to lose: a run that failed before its first step may be started again at will."""
    return (run.metrics.exists() and run.metrics.stat().st_size > 0) or any(run.checkpoints.glob("step_*"))


def _require_writable(root: Path) -> None:
    """Make a file where the run folder is or will be, and leave no trace."""
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with atomic_file(root / ".writable"):
            pass
        (root / ".writable").unlink()
    except OSError as error:
        raise _cannot_write(root, error) from None
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _cannot_write(root: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"Run folder {root}: cannot be written ({error.strerror or error}). Set run.folder.")


def _read_config(run: RunFolder) -> dict[str, Any]:
    """The configuration of an earlier run; only a folder that has one is ever resumed or replaced."""
    try:
        earlier = json.loads(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = None
    if not isinstance(earlier, dict) or _MARK not in earlier:
        raise RunFolderError(
            f"{run.root} exists but is not a run folder (no config.json of a logparity run): it is left alone. "
            "Set run.folder."
        )
    return earlier


def _require_same_config(run: RunFolder, earlier: dict[str, Any], config: dict[str, Any]) -> None:
    """A resumed run may only be longer, keep more, or report differently: anything else changes its numbers."""
    before, now = _flatten(earlier), _flatten(config)
    changed = sorted(
        key for key in before.keys() | now.keys() if before.get(key) != now.get(key) and key not in _FREE_KEYS
    )
    if changed:
        key = changed[0]
        raise RunFolderError(
            f"Run folder {run.root} was made with another configuration: {key} was {before.get(key)!r}, now "
            f"{now.get(key)!r} ({len(changed)} setting(s) differ). Resume with the settings it had, or use --overwrite."
        )


_FREE_KEYS = frozenset(
    {
        _MARK, "run.folder", "run.steps", "run.checkpoint_every", "run.keep_checkpoints", "run.report",
        "tracking.tensorboard", "tracking.wandb", "tracking.wandb_project",
    }
)  # fmt: skip


def _flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= _flatten(value, f"{prefix}{key}.")
    return flat
