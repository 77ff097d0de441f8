"""Reads a run back: what is committed, merged over ranks; what is damaged or superseded is skipped and said."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logparity.errors import InputError, MissingDependencyError
from logparity.probe.metrics.catalog import metrics_of
from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.store.folder import (
    ALARM_FILE,
    META_FILE,
    attempt_folders,
    commit_files,
    is_store,
    rank_folders,
)
from logparity.probe.store.schemas import SCHEMAS, STORE_VERSION, VERSION_KEY, Tier
from logparity.probe.store.summary import read_state

_LARGEST_MARKER: Final = 1 << 20
"""Bytes of a commit marker or an attempt file that are read."""


@dataclass(frozen=True, slots=True)
class StoredUnit:
    """One committed unit of one rank.

    Args:
        step: training step.
        sub_step: within it.
        rank: that wrote it.
        attempt: of that rank.
        seq: number within the attempt.
        files: tier to file; without what a quota deleted.
        pruned: tiers that a quota deleted.
        alarms: rules that it met.
        dropped_calls: lost because the writer was slower than the trainer.
    """

    step: int
    sub_step: int
    rank: int
    attempt: int
    seq: int
    files: dict[Tier, Path]
    pruned: tuple[Tier, ...]
    alarms: tuple[str, ...]
    dropped_calls: int


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step and sub-step, merged over ranks.

    Args:
        step: training step.
        sub_step: within it.
        units: of the ranks.
        measured: merged measurements.
    """

    step: int
    sub_step: int
    units: tuple[StoredUnit, ...]
    measured: UnitMetrics

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics over all ranks, finite values only."""
        return metrics_of(self.measured)

    @property
    def label(self) -> str:
        """For people."""
        return f"step {self.step}" + (f", sub-step {self.sub_step}" if self.sub_step else "")


class ProbeRun:
    """A run folder, opened for reading.

    Args:
        path: of the run.
        units: that count, by step, sub-step, rank.
        notes: what was skipped, and why, for people.
    """

    def __init__(self, path: Path, units: Sequence[StoredUnit], notes: Sequence[str]) -> None:
        self.path, self.units = path, tuple(units)
        self.notes = list(notes)

    @cached_property
    def steps(self) -> tuple[RunStep, ...]:
        """Steps in order, each merged over its ranks; a damaged summary costs its rank's part and leaves a note."""
        grouped: dict[tuple[int, int], list[tuple[StoredUnit, UnitMetrics]]] = {}
        for unit in self.units:
            measured = self._measured(unit)
            if measured is not None:
                grouped.setdefault((unit.step, unit.sub_step), []).append((unit, measured))
        steps = []
        for (step, sub_step), parts in sorted(grouped.items()):
            merged = UnitMetrics()
            for _, measured in parts:
                merged.merge(measured)
            steps.append(RunStep(step, sub_step, tuple(unit for unit, _ in parts), merged))
        return tuple(steps)

    @cached_property
    def whole(self) -> UnitMetrics:
        """All steps merged."""
        merged = UnitMetrics()
        for step in self.steps:
            merged.merge(step.measured)
        return merged

    def rows(self, tier: Tier) -> Iterator[dict[str, Any]]:
        """Rows of a tier, one at a time, by step and rank."""
        for unit in self.units:
            for rows in self._batches(unit, tier):
                yield from rows

    def worst_tokens(self, limit: int = 32) -> list[dict[str, Any]]:
        """The tokens with the largest ``|log_ratio|`` of the whole run."""
        return sorted(self.rows(Tier.WORST), key=lambda row: -abs(row["log_ratio"]))[:limit]

    def alarms(self) -> list[dict[str, Any]]:
        """Evidence of every alarm, as it was written."""
        found = []
        for rank, folder in rank_folders(self.path):
            for attempt, path in attempt_folders(folder):
                found += [{**row, "rank": rank, "attempt": attempt} for row in _json_lines(path / ALARM_FILE)]
        return found

    def query(self, sql: str) -> Any:
        """Ask DuckDB; views ``summary``, ``worst``, ``samples``, ``tokens`` hold the committed units of this run.

        Args:
            sql: one query.

        Returns:
            DuckDB's relation (``.fetchall()``, ``.df()``, ``.arrow()``).

        Raises:
            MissingDependencyError: duckdb is not installed.
        """
        try:
            import duckdb
        except ImportError as error:
            raise MissingDependencyError('queries need DuckDB: pip install "logparity[query]".') from error
        connection = duckdb.connect()
        for tier in Tier:
            files = [str(unit.files[tier]) for unit in self.units if tier in unit.files]
            if files:
                quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
                connection.execute(f"CREATE VIEW {tier.value} AS SELECT * FROM read_parquet([{quoted}])")
        return connection.sql(sql)

    def _measured(self, unit: StoredUnit) -> UnitMetrics | None:
        for rows in self._batches(unit, Tier.SUMMARY):
            try:
                return read_state(rows[0]["state"] or b"")
            except InputError as error:
                self.notes.append(f"{unit.files[Tier.SUMMARY].name} of rank {unit.rank}: {error}")
        return None

    def _batches(self, unit: StoredUnit, tier: Tier) -> Iterator[list[dict[str, Any]]]:
        path = unit.files.get(tier)
        if path is None:
            return
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                found = (file.schema_arrow.metadata or {}).get(VERSION_KEY)
                if found != str(STORE_VERSION).encode() or file.schema_arrow.names != SCHEMAS[tier].names:
                    raise InputError(f"expected the columns of version {STORE_VERSION}, got others")
                yield from (batch.to_pylist() for batch in file.iter_batches(batch_size=256) if batch.num_rows)
        except (OSError, pa.ArrowException, ArithmeticError, ValueError) as error:  # text that is no UTF-8 among them
            self.notes.append(f"{path.relative_to(self.path)}: skipped, {error}")


def open_run(path: str | Path, *, verify: bool = False) -> ProbeRun:
    """Open a run that `Probe` wrote, while it runs or afterwards.

    Args:
        path: the run folder.
        verify: read every file once and hold it against its checksum.

    Returns:
        What is committed. Of a step that a later attempt of the same rank ran again, the later attempt counts, and so
        for all later steps of the earlier one; the notes say so.

    Raises:
        InputError: there is no run, or a newer version wrote it.
    """
    path = Path(path)
    if not path.is_dir() or not is_store(path):
        got = "nothing there" if not path.exists() else "another folder" if path.is_dir() else "a file"
        raise InputError(f"{path}: expected a run folder that the probe wrote (its run_dir), got {got}.")
    units: list[StoredUnit] = []
    notes: list[str] = []
    ids: set[str] = set()
    for rank, folder in rank_folders(path):
        kept: list[StoredUnit] = []
        for attempt, place in attempt_folders(folder):
            meta = _read_json(place / META_FILE)
            if meta is None:
                notes.append(f"{place.relative_to(path)}: the process died before it wrote anything")
                continue
            _check_version(meta, place)
            ids.add(str(meta.get("run_id")))
            notes += [_concurrent(rank, attempt, other) for other in meta.get("concurrent_with") or ()]
            found = list(_units(path, place, rank, attempt, verify, notes))
            kept = _supersede(kept, found, notes)
        units += kept
    if len(ids) > 1:
        notes.append(f"{len(ids)} run ids share this folder: give run_id to name the run, or a folder to each")
    units.sort(key=lambda unit: (unit.step, unit.sub_step, unit.rank))
    return ProbeRun(path, units, notes)


def _units(run: Path, place: Path, rank: int, attempt: int, verify: bool, notes: list[str]) -> Iterator[StoredUnit]:
    for seq, marker_path in commit_files(place):
        marker = _read_json(marker_path)
        if marker is None:
            notes.append(f"{marker_path.relative_to(run)}: skipped, no JSON")
            continue
        _check_version(marker, marker_path)
        files: dict[Tier, Path] = {}
        try:
            for tier, entry in marker["files"].items():
                file = place / Path(str(entry["name"])).name  # a name cannot leave the folder
                problem = _problem(file, entry, verify)
                if problem:
                    notes.append(f"{file.relative_to(run)}: skipped, {problem}")
                else:
                    files[Tier(tier)] = file
            unit = StoredUnit(
                int(marker["step"]),
                int(marker["sub_step"]),
                rank,
                attempt,
                seq,
                files,
                tuple(Tier(tier) for tier in marker["pruned"]),
                tuple(map(str, marker.get("alarms", ()))),
                int(marker.get("dropped_calls", 0)),
            )
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            notes.append(f"{marker_path.relative_to(run)}: skipped, {type(error).__name__} {error}")
            continue
        yield unit


def _concurrent(rank: int, attempt: int, other: object) -> str:
    return (
        f"rank {rank}: attempts {other} and {attempt} were written at the same time by two processes; give each run a "
        "folder of its own, and each process its rank"
    )


def _problem(file: Path, entry: dict[str, Any], verify: bool) -> str | None:
    if not file.is_file():
        return "the file is gone"
    if file.stat().st_size != entry["bytes"]:
        return f"expected {entry['bytes']} bytes, got {file.stat().st_size}: truncated"
    if verify and zlib.crc32(file.read_bytes()) != entry["crc32"]:
        return "the checksum is another: damaged"
    return None


def _supersede(kept: list[StoredUnit], found: list[StoredUnit], notes: list[str]) -> list[StoredUnit]:
    # Within an attempt a step may come again, too (a trainer that goes back): the last one counts.
    last: dict[tuple[int, int], StoredUnit] = {}
    for unit in found:
        last[unit.step, unit.sub_step] = unit
    if len(last) < len(found):
        notes.append(
            f"rank {found[0].rank}: {len(found) - len(last)} units ran again in the same attempt, the last counts"
        )
    if not last:
        return kept
    first = min(last)
    stays = [unit for unit in kept if (unit.step, unit.sub_step) < first]
    if len(stays) < len(kept):
        notes.append(
            f"rank {found[0].rank}: {len(kept) - len(stays)} units of earlier attempts left out, attempt "
            f"{found[0].attempt} ran from step {first[0]} on"
        )
    return [*stays, *last.values()]


def _check_version(data: dict[str, Any], path: Path) -> None:
    version = data.get("version")
    if isinstance(version, int) and version > STORE_VERSION:
        raise InputError(
            f"{path.name}: expected version {STORE_VERSION} or older, got {version}. "
            "Upgrade logparity: a newer one wrote it."
        )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_LARGEST_MARKER))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _json_lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a process that was killed
        if isinstance(row, dict):
            rows.append(row)
    return rows


__all__ = ["ProbeRun", "RunStep", "StoredUnit", "open_run"]
