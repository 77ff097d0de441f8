"""Folders that are expensive to make, made once per machine: locked, atomic, checksummed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from logparity.errors import MissingDependencyError, ModelError
from logparity.models.manifest import damage, write_manifest

CACHE_VARIABLE = "LOGPARITY_CACHE"


def cache_folder(override: str | Path | None = None) -> Path:
    """Where logparity keeps what it can make again: argument, ``LOGPARITY_CACHE``, then the user's cache folder."""
    chosen = override or os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise MissingDependencyError("platformdirs is not installed: pip install 'logparity[train]'.") from error
    return user_cache_path("logparity", appauthor=False)


def make_once(folder: Path, make: Callable[[Path], None], *, full: bool = False) -> Path:
    """Return a folder, making it if it is absent or damaged.

    Work goes on in a temporary sibling that takes the folder's name only when complete, so that a killed process
    leaves nothing half-written; a file lock lets one process work while others wait for its result.

    Args:
        folder: the folder wanted.
        make: fills an empty folder.
        full: check every byte of an existing folder instead of sizes and small files.

    Returns:
        ``folder``, complete.

    Raises:
        ModelError: the cache is not writable.
    """
    if folder.is_dir() and damage(folder, full=full) is None:
        return folder
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir() or damage(folder, full=full) is not None:
                _replace(folder, make)
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error}. Set {CACHE_VARIABLE} to a folder with space.") from error
    return folder


def _replace(folder: Path, make: Callable[[Path], None]) -> None:
    working = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(working)
        write_manifest(working)
        working.chmod(0o755)  # mkdtemp makes it private
        if folder.exists():
            shutil.rmtree(folder)
        working.rename(folder)
    finally:
        shutil.rmtree(working, ignore_errors=True)


__all__ = ["CACHE_VARIABLE", "cache_folder", "make_once"]
