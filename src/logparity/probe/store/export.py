"""A run in the formats of other tools: tables as CSV or JSON lines, tokens as npz or as the plain ``.npy`` pairs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError, RunFolderError
from logparity.probe.atomic import atomic_file
from logparity.probe.npy_files import PairName, write_pair
from logparity.probe.store.reader import ProbeRun
from logparity.probe.store.schemas import Tier


class Export(str, Enum):
    """What is exported."""

    METRICS = "metrics"
    """One row a step, all ranks merged (.csv, .jsonl)."""
    GROUPS = "groups"
    """One row a step and group (.csv, .jsonl)."""
    CENSUS = "census"
    """One row a step, defect, and place (.csv, .jsonl)."""
    WORST = "worst"
    """The worst tokens of every step (.csv, .jsonl)."""
    SAMPLES = "samples"
    """The whole samples that were kept (.jsonl, or a folder of .npz)."""
    TOKENS = "tokens"
    """Every token of the steps that have them (.jsonl, or a folder of .npz)."""
    PAIRS = "pairs"
    """The same as ``prob_diff_step_N.npy`` and ``prob_mask_step_N.npy`` in a folder."""


def export_run(run: ProbeRun, what: Export, out: Path) -> int:
    """Write a part of a run.

    Args:
        run: opened by `open_run`.
        what: part.
        out: a ``.csv`` or ``.jsonl`` file, or a folder for arrays; an existing file is replaced.

    Returns:
        Rows or files written.

    Raises:
        InputError: the part cannot be written into such a file, or the run does not have it.
        RunFolderError: the place cannot be written to.
    """
    suffix = out.suffix
    try:
        if what in (Export.SAMPLES, Export.TOKENS, Export.PAIRS) and suffix not in (".jsonl", ".csv"):
            write = _write_pair if what is Export.PAIRS else _write_npz
            count = _write_arrays(run, Tier.SAMPLES if what is Export.SAMPLES else Tier.TOKENS, out, write)
        elif suffix == ".jsonl" and what is not Export.PAIRS:
            count = _write_jsonl(_rows(run, what), out)
        elif suffix == ".csv" and what not in (Export.SAMPLES, Export.TOKENS, Export.PAIRS):
            count = _write_csv(_rows(run, what), out)
        else:
            raise InputError(f"{out.name}: expected {_places(what)} for {what.value}, got another kind of file.")
    except OSError as error:
        raise RunFolderError(f"{out}: expected a place to write to, got {error}.") from error
    if not count:
        raise InputError(f"{run.path}: the run keeps no {what.value}. Its StoreConfig says what is kept.")
    return count


def _places(what: Export) -> str:
    if what is Export.PAIRS:
        return "a folder"
    return "a .jsonl file or a folder" if what in (Export.SAMPLES, Export.TOKENS) else "a .csv or .jsonl file"


def _rows(run: ProbeRun, what: Export) -> Iterator[dict[str, Any]]:
    if what in (Export.WORST, Export.SAMPLES, Export.TOKENS):
        yield from run.rows(Tier(what.value))
        return
    for step in run.steps:
        where = {"step": step.step, "sub_step": step.sub_step}
        if what is Export.METRICS:
            yield {**where, **step.metrics}
        elif what is Export.GROUPS:
            for group, rows in step.measured.group_rows().items():
                yield from ({**where, "group": group, **row} for row in rows)
        else:
            census = step.measured.census
            for defect, count in census.counts.items():
                for place in census.places[defect]:
                    found = {"key": place.key, "position": place.position, "side": place.side, "value": place.value}
                    yield {**where, "defect": defect, "count": count, **found}


def _write_jsonl(rows: Iterable[Mapping[str, Any]], out: Path) -> int:
    count = 0
    rows = iter(rows)
    first = next(rows, None)
    if first is None:  # nothing is written, and what is there stays
        return 0
    with atomic_file(out) as file:
        for row in chain([first], rows):
            file.write(json.dumps(_plain(row), allow_nan=False).encode() + b"\n")
            count += 1
    return count


def _write_csv(rows: Iterable[Mapping[str, Any]], out: Path) -> int:
    found = list(rows)  # the columns are known only when all rows are
    if not found:
        return 0
    columns = list(dict.fromkeys(name for row in found for name in row))
    with atomic_file(out) as binary:
        lines = csv.writer(_Encoded(binary), lineterminator="\n")
        lines.writerow(columns)
        lines.writerows([_cell(row.get(name)) for name in columns] for row in found)
    return len(found)


def _write_arrays(run: ProbeRun, tier: Tier, out: Path, write: Callable[[Path, int, int, list[Any]], None]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for (step, sub_step), rows in groupby(run.rows(tier), key=lambda row: (row["step"], row["sub_step"])):
        write(out, step, sub_step, [_padded_row(row) for row in rows])
        count += 1
    return count


_Row = tuple[str, NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], "NDArray[np.int64] | None"]
"""Key, rollout and train log-probs, mask, ids; over the whole response."""


def _padded_row(row: Mapping[str, Any]) -> _Row:
    ids = row["token_ids"]
    if "mask" in row:
        rollout, train = (np.asarray(row[name], np.float32) for name in ("rollout_log_probs", "old_log_probs"))
        return row["key"], rollout, train, np.asarray(row["mask"], np.bool_), None if ids is None else np.asarray(ids)
    turns = list(zip(row["turn_starts"], row["turn_lengths"], strict=True))
    size = turns[-1][0] + turns[-1][1] if turns else 0
    mask = np.zeros(size, np.bool_)
    for start, length in turns:
        mask[start : start + length] = True
    rollout, train = np.zeros(size, np.float32), np.zeros(size, np.float32)
    rollout[mask] = np.asarray(row["rollout_log_probs"], np.float32)
    train[mask] = rollout[mask] + np.asarray(row["log_ratio"], np.float32)
    placed = None
    if ids is not None:
        placed = np.zeros(size, np.int64)
        placed[mask] = ids
    return row["key"], rollout, train, mask, placed


def _write_npz(folder: Path, step: int, sub_step: int, rows: list[_Row]) -> None:
    rollout, train, mask = _stacked(rows)
    arrays: dict[str, NDArray[Any]] = {
        "rollout_log_probs": rollout,
        "old_log_probs": train,
        "response_mask": mask,
        "keys": np.asarray([row[0] for row in rows], np.str_),
        "step": np.asarray(step),
    }
    if all(row[4] is not None for row in rows):
        arrays["responses"] = _stack([row[4] for row in rows if row[4] is not None], np.int64)
    name = f"step_{step}" + (f"_sub{sub_step}" if sub_step else "")
    with atomic_file(folder / f"{name}.npz") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # its stub takes the names for flags


def _write_pair(folder: Path, step: int, sub_step: int, rows: list[_Row]) -> None:
    rollout, train, mask = _stacked(rows)
    diff = np.where(mask, np.abs(np.exp(rollout) - np.exp(train)), np.float32(0)).astype(np.float32)
    write_pair(folder, PairName.of(step, sub_step), diff, mask, [row[0] for row in rows])


def _stacked(rows: list[_Row]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    rollout, train = (_stack([row[i] for row in rows], np.float32) for i in (1, 2))
    return rollout, train, _stack([row[3] for row in rows], np.bool_)


def _stack(rows: list[Any], dtype: type) -> NDArray[Any]:
    out: NDArray[Any] = np.zeros((len(rows), max((len(row) for row in rows), default=0)), dtype)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else str(float(value))
    return value


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(_plain(value))
    # A spreadsheet runs a cell that begins with one of these.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


class _Encoded:
    """Text into a binary file, for the csv module."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return int(self._file.write(text.encode("utf-8", errors="replace")))


__all__ = ["Export", "export_run"]
