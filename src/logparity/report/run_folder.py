"""What a run folder holds, read for the report; what it lacks is said."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logparity.errors import InputError
from logparity.probe.analysis import Analysis, analyze_folder

Series = tuple[list[int], list[float]]
"""Steps and values."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The parts of a run that the report draws from.

    Args:
        path: the folder.
        metrics: one mapping per step, in order of the steps; of a step that was run twice, the later one.
        config: resolved configuration, flat: dotted key to value.
        analysis: of ``prob_diff/``; None where there are no pairs.
        rollouts: Parquet files, in order.
        notes: what is missing or damaged, for people.
    """

    path: Path
    metrics: tuple[Mapping[str, Any], ...]
    config: Mapping[str, Any]
    analysis: Analysis | None
    rollouts: tuple[Path, ...]
    notes: tuple[str, ...]

    def series(self, key: str) -> Series | None:
        """Finite values of a metric by step; None where there are none."""
        points = [(row["step"], row[key]) for row in self.metrics if _finite(row.get(key))]
        return ([step for step, _ in points], [float(value) for _, value in points]) if points else None


def read_run(path: Path) -> RunFolder:
    """Read a run folder.

    Args:
        path: holds ``metrics.jsonl``, ``config.json``, ``prob_diff/``, ``rollouts/``, or some of them.

    Returns:
        What was found.

    Raises:
        InputError: there is no such folder, or it holds none of them.
    """
    if not path.is_dir():
        raise InputError(f"{path}: expected a run folder, got {'a file' if path.exists() else 'nothing there'}.")
    notes: list[str] = []
    metrics, config = _metrics(path, notes), _config(path, notes)
    analysis = _analysis(_pairs_folder(path, config), notes)
    rollouts = tuple(sorted((path / "rollouts").glob("*.parquet")))
    if not rollouts:
        notes.append("rollouts/*.parquet is missing: no scatter, no worst tokens, no text")
    if not (metrics or analysis or rollouts):
        raise InputError(
            f"{path}: expected metrics.jsonl, prob_diff/*.npy or rollouts/*.parquet, got none. Is it a run folder?"
        )
    return RunFolder(path, metrics, config, analysis, rollouts, tuple(notes))


def _metrics(path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    file = path / "metrics.jsonl"
    if not file.exists():
        notes.append("metrics.jsonl is missing: no reward, no training metrics")
        return ()
    rows: dict[int, Mapping[str, Any]] = {}
    damaged, not_finite = 0, 0
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows[int(row["step"])] = row
        except (ValueError, KeyError, TypeError):
            damaged += bool(line.strip())
            continue
        not_finite += sum(isinstance(value, float) and not math.isfinite(value) for value in row.values())
    if damaged:
        notes.append(f"metrics.jsonl: {damaged} lines could not be read and are left out")
    if not_finite:
        notes.append(f"metrics.jsonl: {not_finite} values are NaN or infinite and are not drawn")
    return tuple(rows[step] for step in sorted(rows))


def _config(path: Path, notes: list[str]) -> Mapping[str, Any]:
    file = path / "config.json"
    try:
        return dict(_flat(json.loads(file.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        notes.append("config.json is missing: no settings")
    except ValueError as error:
        notes.append(f"config.json could not be read: {error}")
    return {}


def _pairs_folder(path: Path, config: Mapping[str, Any]) -> Path:
    """Where the run's settings say that its per-token files are, ``{run}`` standing for the run folder."""
    named = config.get("probe.save_dir")
    return Path(str(named).replace("{run}", str(path))) if named else path / "prob_diff"


def _analysis(folder: Path, notes: list[str]) -> Analysis | None:
    if not folder.is_dir() or not any(folder.glob("prob_diff*.npy")):
        notes.append(
            f"{folder}/prob_diff*.npy is missing: no picture by position, no token map (the probe was off, or had no "
            "save_dir)"
        )
        return None
    try:
        analysis = analyze_folder(folder)
    except InputError as error:
        notes.append(f"{folder} could not be read: {error}")
        return None
    if analysis.summary.not_finite:
        notes.append(
            f"{folder}: {analysis.summary.not_finite:,} valid tokens are NaN or infinite, left out of every figure"
        )
    if analysis.leaked:
        notes.append(f"prob_diff/: {analysis.leaked:,} slots outside the mask are not 0, left out")
    if analysis.superseded:
        notes.append(f"prob_diff/: {len(analysis.superseded)} pairs belong to earlier attempts at a step, left out")
    return analysis


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [pair for key, inner in value.items() for pair in _flat(inner, f"{prefix}.{key}" if prefix else str(key))]


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


__all__ = ["RunFolder", "Series", "read_run"]
