"""Sequences to score, from a file: Parquet rollouts of a run, or plain Parquet or JSON lines from any engine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logparity.errors import InputError
from logparity.probe.rollout_store import StoredRollout, is_rollouts, read_rollouts
from logparity.records import BoolArray, FloatArray, IntArray, LogProbMode

_FIELDS = frozenset(
    ("key", "prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "temperature", "log_prob_mode")
)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence to score.

    Args:
        key: what the file calls it.
        prompt_ids: int64 ``[P]``.
        response_ids: int64 ``[R]``.
        response_mask: bool ``[R]``.
        temperature: what divides the logits so that the score belongs to the engine's distribution.
        rollout_log_probs: float32 ``[R]``, nats; None where the file has none.
        truncated: the engine renormalised over a top-k, top-p or min-p cut, which a full-vocabulary score does not.
    """

    key: str
    prompt_ids: IntArray
    response_ids: IntArray
    response_mask: BoolArray
    temperature: float
    rollout_log_probs: FloatArray | None
    truncated: bool = False

    def __post_init__(self) -> None:
        for name in ("response_mask", "rollout_log_probs"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.response_ids):
                raise InputError(
                    f"{name} of sample {self.key!r}: expected {len(self.response_ids)} values, one per response id, "
                    f"got {len(values)}."
                )


def read_sequences(source: Path) -> Iterator[Sequence]:
    """Read what is to be scored, one sequence at a time.

    Args:
        source: a ``.jsonl`` file, a Parquet file of rollouts or with the same columns as the lines, or a folder of
            Parquet files.

    Yields:
        Sequences in the order of the file.

    Raises:
        InputError: the file is missing, unreadable, or a line or row is malformed (named by number).
    """
    if source.suffix == ".jsonl":
        yield from _read_lines(source)
        return
    for path in _parquet_files(source):
        if is_rollouts(path):
            yield from map(_from_stored, read_rollouts(path))
        else:
            yield from _read_rows(path)


def _parquet_files(source: Path) -> list[Path]:
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    if not files or not files[0].exists():
        raise InputError(f"{source}: expected a Parquet file or folder of rollouts, or a .jsonl file, got none.")
    return files


def _read_rows(path: Path) -> Iterator[Sequence]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    number += 1
                    yield _named(row, f"{path.name}, row {number}", number)
    except (pa.ArrowException, OSError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{path.name}: expected a readable Parquet file, got {text} after row {number}.") from error


def _from_stored(stored: StoredRollout) -> Sequence:
    rollout, sampling = stored.rollout, stored.rollout.sampling
    raw = rollout.engine.log_prob_mode is LogProbMode.RAW
    return Sequence(
        key=rollout.key,
        prompt_ids=rollout.prompt_ids,
        response_ids=rollout.response_ids,
        response_mask=rollout.response_mask,
        temperature=1.0 if raw else sampling.temperature,
        rollout_log_probs=rollout.rollout_log_probs,
        truncated=not raw and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0),
    )


def _read_lines(path: Path) -> Iterator[Sequence]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: expected a readable file of JSON lines, got {error.strerror}.") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path.name}, line {number}"
            try:
                row = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(f"{place}: expected UTF-8 text, got {error.reason} at byte {error.start}.") from error
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{place}: expected one JSON object a line, got text that is none: {error}."
                ) from error
            yield _named(row, place, number)


def _named(row: Any, place: str, number: int) -> Sequence:
    try:
        return _from_object(row, number)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        problem = f"field {error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{place}: {problem}") from error


def _from_object(row: Any, number: int) -> Sequence:
    if not isinstance(row, dict):
        raise InputError(f"expected a JSON object, got {type(row).__name__}.")
    row = {name: value for name, value in row.items() if value is not None or name not in _FIELDS}
    if unknown := sorted(set(row) - _FIELDS):
        raise InputError(
            f"unknown field {unknown[0]!r}: expected some of {', '.join(sorted(_FIELDS))}. Rename or drop it."
        )
    raw = _mode(row.get("log_prob_mode", LogProbMode.PROCESSED.value)) is LogProbMode.RAW
    response = _ids(row["response_ids"], "response_ids")
    log_probs = row.get("rollout_log_probs")
    return Sequence(
        key=str(row.get("key", number)),
        prompt_ids=_ids(row["prompt_ids"], "prompt_ids"),
        response_ids=response,
        response_mask=_mask(row.get("response_mask", [1] * len(response))),
        temperature=1.0 if raw else _temperature(row.get("temperature", 1.0)),
        rollout_log_probs=None if log_probs is None else _log_probs(log_probs),
    )


def _mode(value: Any) -> LogProbMode:
    modes = [mode.value for mode in LogProbMode]
    if value not in modes:
        raise InputError(f"log_prob_mode: expected one of {', '.join(modes)}, got {value!r}.")
    return LogProbMode(value)


def _temperature(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"temperature: expected a finite number > 0, got {value!r}.")
    return float(value)


def _log_probs(values: Any) -> FloatArray:
    """Null is a log-prob that the engine did not report: NaN, which the comparison leaves out and counts."""
    if not isinstance(values, list) or not all(value is None or _is_number(value) for value in values):
        raise InputError("rollout_log_probs: expected a list of numbers.")
    return np.asarray([math.nan if value is None else value for value in values], dtype=np.float32)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ids(values: Any, name: str) -> IntArray:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InputError(f"{name}: expected a list of integers.")
    return np.asarray(values, dtype=np.int64)


def _mask(values: Any) -> BoolArray:
    if not isinstance(values, list) or not all(value in (0, 1) for value in values):
        raise InputError("response_mask: expected a list of 0 and 1.")
    return np.asarray(values, dtype=np.bool_)


__all__ = ["Sequence", "read_sequences"]
