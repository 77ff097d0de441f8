"""Where things are in a run folder, and how an attempt claims its own place in it.

``RUN/logparity-run.json`` names the format; ``RUN/rank-00003/attempt-0002/`` belongs to one process. A process holds
a lock on ``owner.lock`` for as long as it lives, so that a second one on the same rank is seen, whatever clocks say.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any, Final

from logparity.probe.atomic import atomic_file
from logparity.probe.store.schemas import STORE_VERSION, Tier

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows
    fcntl = None  # type: ignore[assignment]

RUN_FILE: Final = "logparity-run.json"
META_FILE: Final = "attempt.json"
LOCK_FILE: Final = "owner.lock"
ALARM_FILE: Final = "alarms.jsonl"

_RANK = re.compile(r"rank-(\d{5,})")
_ATTEMPT = re.compile(r"attempt-(\d{4,})")
_COMMIT = re.compile(r"commit-(\d{8,})\.json")


def is_store(path: Path) -> bool:
    """Whether a folder is a run of the store."""
    return (path / RUN_FILE).is_file() or any(_RANK.fullmatch(p.name) for p in path.glob("rank-*"))


def rank_folders(run: Path) -> list[tuple[int, Path]]:
    """Ranks and their folders, in order."""
    return _numbered(run, _RANK)


def attempt_folders(rank: Path) -> list[tuple[int, Path]]:
    """Attempts and their folders, in order."""
    return _numbered(rank, _ATTEMPT)


def commit_files(attempt: Path) -> list[tuple[int, Path]]:
    """Sequence numbers and commit markers, in order."""
    return _numbered(attempt, _COMMIT)


def commit_path(attempt: Path, seq: int) -> Path:
    """The commit marker of a unit."""
    return attempt / f"commit-{seq:08d}.json"


def table_path(attempt: Path, tier: Tier, seq: int) -> Path:
    """The file of a unit in a tier."""
    return attempt / f"{tier.value}-{seq:08d}.parquet"


class Attempt:
    """A folder that belongs to this process alone.

    Args:
        path: of the folder.
        number: of the attempt, from 1.
        lock: open file whose lock says that this process lives; None where locks do not work.
        concurrent: attempts of the same rank whose process lives.
    """

    def __init__(self, path: Path, number: int, lock: int | None, concurrent: list[int]) -> None:
        self.path, self.number, self.concurrent = path, number, concurrent
        self._lock = lock

    @classmethod
    def claim(cls, run: Path, rank: int, run_id: str) -> Attempt:
        """Make the next attempt of a rank.

        Args:
            run: the run folder, made where it does not exist.
            rank: of this process.
            run_id: written into the attempt.

        Returns:
            The attempt.

        Raises:
            OSError: the folder cannot be written to.
        """
        folder = run / f"rank-{rank:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        if not (run / RUN_FILE).exists():
            _write_json(run / RUN_FILE, {"format": "logparity-run", "version": STORE_VERSION})
        earlier = attempt_folders(folder)
        number = earlier[-1][0] + 1 if earlier else 1
        while True:
            path = folder / f"attempt-{number:04d}"
            try:
                path.mkdir()
            except FileExistsError:  # another process was quicker
                number += 1
                continue
            break
        lock = _lock(path / LOCK_FILE)
        alive = [n for n, other in attempt_folders(folder) if n < number and _is_locked(other / LOCK_FILE)]
        meta = {
            "version": STORE_VERSION,
            "rank": rank,
            "attempt": number,
            "run_id": run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "time": time.time(),
            "concurrent_with": alive,
        }
        _write_json(path / META_FILE, meta)
        for n, other in earlier:
            if n not in alive:
                _remove_leftovers(other)
        return cls(path, number, lock, alive)

    def release(self) -> None:
        """Let the lock go."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk, so that a rename outlives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems do not know it
        pass
    finally:
        os.close(descriptor)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    matches = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match.group(1)), path) for match, path in matches if match)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(data).encode())


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _is_locked(path: Path) -> bool:
    if fcntl is None or not path.exists():
        return False
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _remove_leftovers(attempt: Path) -> None:
    # Of a process that died in the middle of a write; its temporary files belong to nobody.
    for path in attempt.glob(".*.tmp"):
        path.unlink(missing_ok=True)


__all__ = [
    "ALARM_FILE",
    "META_FILE",
    "RUN_FILE",
    "Attempt",
    "attempt_folders",
    "commit_files",
    "commit_path",
    "is_store",
    "rank_folders",
    "sync_folder",
    "table_path",
]
