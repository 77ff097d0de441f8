"""The four layouts of per-token data as one: values row after row, and how long the rows are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.probe.snapshot.capture import Rows
from logparity.records import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Ragged:
    """Per-token values of ``B`` rows.

    Args:
        values: ``[N]``, row after row.
        lengths: int64 ``[B]``.
        layout: how they came, for people.
        missing: bool ``[N]``, entries that were None; None where there were none.
        absent: int64, rows that were None as a whole; their length here is 0.
    """

    values: NDArray[Any]
    lengths: IntArray
    layout: str
    missing: BoolArray | None
    absent: IntArray

    def select(self, keep: BoolArray) -> Ragged:
        """The rows where ``keep`` is True."""
        tokens = np.repeat(keep, self.lengths)
        missing = None if self.missing is None else self.missing[tokens]
        return Ragged(self.values[tokens], self.lengths[keep], self.layout, missing, self.absent)

    def with_absent(self, lengths: IntArray) -> Ragged:
        """Fill the rows that were None with missing entries, as many as ``lengths`` says."""
        if not len(self.absent):
            return self
        rows = np.split(self.values, np.cumsum(self.lengths)[:-1])
        gone = np.zeros(len(self.values), np.bool_) if self.missing is None else self.missing
        flags = np.split(gone, np.cumsum(self.lengths)[:-1])
        for row in self.absent.tolist():
            rows[row], flags[row] = np.full(lengths[row], np.nan), np.ones(lengths[row], np.bool_)
        sizes = np.asarray([len(row) for row in rows], np.int64)
        return Ragged(np.concatenate(rows), sizes, self.layout, np.concatenate(flags), np.zeros(0, np.int64))


def as_ragged(data: NDArray[Any] | Rows, lengths: IntArray | None, name: str, width: int | None = None) -> Ragged:
    """Bring captured data into one layout.

    Args:
        data: what was captured.
        lengths: int64 ``[B]`` of packed rows; None where it is not packed.
        name: what it is, for error messages.
        width: columns that a padded array may have; a wider one is cut to its last ``width`` columns.

    Returns:
        Values and lengths.

    Raises:
        InputError: the shape fits none of the layouts, or the lengths do not add up.
    """
    if isinstance(data, list):
        return _from_rows(data, name)
    if data.ndim == 2:
        if width is not None and data.shape[1] > width:
            data = data[:, data.shape[1] - width :]
        sizes = np.full(data.shape[0], data.shape[1], np.int64)
        return Ragged(data.reshape(-1), sizes, "padded [B, R]", *_nothing())
    if data.ndim != 1:
        raise InputError(
            f"{name}: expected padded [B, R], packed [N] with lengths, a list of rows, or a nested tensor, "
            f"got shape {data.shape}."
        )
    if lengths is None:
        raise InputError(f"{name}: got shape {data.shape}; a packed [N] array needs lengths [B]. Give lengths=.")
    if int(lengths.sum()) != len(data):
        raise InputError(f"{name}: expected {int(lengths.sum())} values, the sum of lengths, got {len(data)} (packed).")
    values, missing = split_missing(data)
    return Ragged(values, lengths, "packed [N]", missing, np.zeros(0, np.int64))


def split_missing(data: NDArray[Any]) -> tuple[NDArray[Any], BoolArray | None]:
    """Turn None into NaN, and say where it was."""
    if data.dtype.kind != "O":
        return data, None
    missing = np.asarray([value is None for value in data], np.bool_)
    return np.asarray([np.nan if value is None else value for value in data], np.float64), missing


def _from_rows(rows: Rows, name: str) -> Ragged:
    for index, row in enumerate(rows):
        if row is not None and row.ndim != 1:
            raise InputError(f"{name}[{index}]: expected a 1-D row, got shape {row.shape} (list of rows).")
    parts = [split_missing(np.zeros(0) if row is None else row) for row in rows]
    sizes = np.asarray([len(values) for values, _ in parts], np.int64)
    values = np.concatenate([values for values, _ in parts]) if parts else np.zeros(0)
    missing = None
    if any(flags is not None for _, flags in parts):
        missing = np.concatenate([np.zeros(len(v), np.bool_) if f is None else f for v, f in parts])
    absent = np.flatnonzero([row is None for row in rows]).astype(np.int64)
    return Ragged(values, sizes, "list of rows", missing, absent)


def _nothing() -> tuple[None, IntArray]:
    return None, np.zeros(0, np.int64)


__all__ = ["Ragged", "as_ragged", "split_missing"]
