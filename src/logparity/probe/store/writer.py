"""Writes a rank's units: tables first, each whole or not at all, then the marker that makes them count."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from logparity.probe.atomic import atomic_file
from logparity.probe.store.config import StoreConfig
from logparity.probe.store.folder import ALARM_FILE, Attempt, commit_path, sync_folder, table_path
from logparity.probe.store.schemas import STORE_VERSION, Tier

_DELETED_FIRST = (Tier.TOKENS, Tier.SAMPLES, Tier.WORST)


@dataclass(slots=True)
class _Committed:
    seq: int
    marker: dict[str, Any]
    sizes: dict[Tier, int] = field(default_factory=dict)


class RankWriter:
    """The writer of one process; its attempt is claimed with the first unit.

    Args:
        run: the run folder.
        rank: of this process.
        run_id: of the run.
        config: quota.
    """

    def __init__(self, run: Path, rank: int, run_id: str, config: StoreConfig) -> None:
        self._run, self._rank, self._run_id, self._config = run, rank, run_id, config
        self._attempt: Attempt | None = None
        self._units: dict[int, _Committed] = {}
        self._next = 0

    @property
    def attempt(self) -> Attempt:
        """The attempt, claimed on first use.

        Raises:
            OSError: the folder cannot be written to.
        """
        if self._attempt is None:
            self._attempt = Attempt.claim(self._run, self._rank, self._run_id)
        return self._attempt

    def where(self, step: int, sub_step: int) -> dict[str, int]:
        """The columns that every table begins with."""
        return {"step": step, "sub_step": sub_step, "rank": self._rank, "attempt": self.attempt.number}

    def write(self, step: int, sub_step: int, tables: Mapping[Tier, pa.Table], extra: Mapping[str, Any]) -> int:
        """Write a unit and commit it.

        Args:
            step: training step.
            sub_step: within it.
            tables: by tier.
            extra: further entries of the marker.

        Returns:
            Its sequence number in this attempt.

        Raises:
            OSError: it cannot be written; nothing of it counts.
        """
        seq, self._next = self._next, self._next + 1
        marker: dict[str, Any] = {
            "version": STORE_VERSION,
            "seq": seq,
            "step": step,
            "sub_step": sub_step,
            "files": {},
            "pruned": [],
            **extra,
        }
        unit = _Committed(seq, marker)
        for tier, table in tables.items():
            self._write_table(unit, tier, table)
        self._commit(unit)
        self._units[seq] = unit
        self._prune()
        return seq

    def add(self, seq: int, tier: Tier, table: pa.Table) -> None:
        """Add a table to a unit that is committed already.

        Raises:
            OSError: it cannot be written; the unit stays as it was.
        """
        unit = self._units[seq]
        if tier.value in unit.marker["files"] or tier.value in unit.marker["pruned"]:
            return
        self._write_table(unit, tier, table)
        self._commit(unit)
        self._prune()

    def record_alarm(self, line: str) -> None:
        """Append one line of evidence.

        Raises:
            OSError: it cannot be written.
        """
        with (self.attempt.path / ALARM_FILE).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def close(self) -> None:
        """Let the attempt go."""
        if self._attempt is not None:
            self._attempt.release()

    def _write_table(self, unit: _Committed, tier: Tier, table: pa.Table) -> None:
        path = table_path(self.attempt.path, tier, unit.seq)
        with atomic_file(path) as file:
            checked = _Checked(file)
            pq.write_table(
                table,
                checked,
                compression="zstd",
                use_dictionary=[name for name in ("key", "group") if name in table.schema.names],
                write_page_checksum=True,
            )
        unit.marker["files"][tier.value] = {"name": path.name, "bytes": checked.size, "crc32": checked.crc}
        unit.sizes[tier] = checked.size

    def _commit(self, unit: _Committed) -> None:
        sync_folder(self.attempt.path)
        with atomic_file(commit_path(self.attempt.path, unit.seq)) as file:
            file.write(json.dumps(unit.marker, allow_nan=False).encode())
        sync_folder(self.attempt.path)

    def _prune(self) -> None:
        quota = self._config.quota_bytes
        if quota is None:
            return
        used = sum(sum(unit.sizes.values()) for unit in self._units.values())
        for tier in _DELETED_FIRST:
            for unit in self._units.values():
                if used <= quota:
                    return
                if tier in unit.sizes:
                    used -= unit.sizes.pop(tier)
                    name = unit.marker["files"].pop(tier.value)["name"]
                    unit.marker["pruned"].append(tier.value)
                    self._commit(unit)  # the marker first: a reader must not look for what is gone
                    (self.attempt.path / name).unlink(missing_ok=True)


class _Checked:
    """A file that counts and sums what passes; pyarrow writes to it in order."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size, self.crc = 0, 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.size += view.nbytes
        self.crc = zlib.crc32(view, self.crc)
        self._file.write(view)
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


__all__ = ["RankWriter"]
