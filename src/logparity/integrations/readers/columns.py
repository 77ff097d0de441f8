"""Plain lists and arrays out of a file as checked numpy rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError

Rows: TypeAlias = list[NDArray[Any]]


def is_nested(value: Any) -> bool:
    """Whether a value is a list of sequences (or a matrix), not one flat sequence."""
    if isinstance(value, np.ndarray):
        return value.ndim > 1
    return isinstance(value, Sequence) and any(isinstance(item, (Sequence, np.ndarray)) for item in value)


def numbers(value: Any, name: str) -> NDArray[Any]:
    """One flat sequence of numbers; None becomes NaN.

    Args:
        value: array, tensor converted to an array, or list of numbers and None.
        name: what it is, for the message.

    Returns:
        1-D array of a numeric or bool dtype.

    Raises:
        InputError: it holds anything else.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not all(item is None or isinstance(item, (int, float)) for item in value):
            odd = next(item for item in value if item is not None and not isinstance(item, (int, float)))
            raise InputError(f"{name}: expected numbers and null, got {type(odd).__name__}.")
        try:
            array = np.asarray([np.nan if item is None else item for item in value])
        except (OverflowError, ValueError) as error:
            raise InputError(f"{name}: expected numbers that fit 64 bits, got larger ones.") from error
        if array.size == 0:
            array = np.zeros(0, np.float64)
    else:
        raise InputError(f"{name}: expected a list of numbers, got {type(value).__name__}.")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected numbers, got dtype {array.dtype}. Object arrays and text are refused.")
    if array.ndim != 1:
        raise InputError(f"{name}: expected one flat sequence, got shape {array.shape}.")
    return array


def rows_of(value: Any, name: str) -> Rows:
    """Every sequence of a nested value."""
    if isinstance(value, np.ndarray) and value.ndim != 2:
        raise InputError(f"{name}: expected shape [B, R], got {value.shape}.")
    return [numbers(row, f"{name}[{index}]") for index, row in enumerate(value)]


def as_floats(row: NDArray[Any]) -> NDArray[np.float32]:
    """A row of log-probs in float32; what is too large for it becomes infinite, and is counted as such later."""
    with np.errstate(over="ignore"):
        return row.astype(np.float32)


def as_bools(row: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """A row of a mask; every number but 0 is True, NaN is refused."""
    if row.dtype.kind == "f" and np.isnan(row).any():
        raise InputError(f"{name}: expected 0 and 1, got NaN or null. Say for every token whether it counts.")
    result: NDArray[np.bool_] = row != 0
    return result


def as_ids(row: NDArray[Any], name: str) -> NDArray[np.int64]:
    """A row of token ids or lengths."""
    if row.size and row.dtype.kind == "f" and not (np.isfinite(row) & (row == np.floor(row))).all():
        raise InputError(f"{name}: expected whole numbers, got others.")
    return row.astype(np.int64)


__all__ = ["Rows", "as_bools", "as_floats", "as_ids", "is_nested", "numbers", "rows_of"]
