"""Copies of tensors, arrays, and lists, made at once and read later on another thread.

The copy is all that the trainer waits for. A tensor on an accelerator goes into pinned memory behind the work that is
queued there; the thread that reads it waits, the trainer does not. No library is imported for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.probe.snapshot.buffers import Lease

Rows = list["NDArray[Any] | None"]
"""One 1-D array a row; None where the caller has nothing for it."""

Reader = Callable[[], "NDArray[Any] | Rows"]
"""Gives what was captured, as numpy."""


class Kind(str, Enum):
    """What an argument holds; masks and ids are copied in the smallest type that holds them."""

    FLOAT = "float"
    MASK = "mask"
    ID = "id"


def capture(value: Any, name: str, lease: Lease, kind: Kind = Kind.FLOAT) -> Reader:
    """Copy a per-token argument.

    Args:
        value: array, tensor, nested tensor, or a sequence of numbers (or None), of rows, or of both libraries' arrays.
        name: what it is, for error messages.
        lease: memory for the copy; what the returned function gives is good until it is released.
        kind: what it holds.

    Returns:
        A function that gives the copy as a numpy array, or as one 1-D array a row.

    Raises:
        InputError: it is none of these.
    """
    if getattr(value, "is_nested", False):
        return _nested(value, lease, kind)
    if hasattr(value, "detach"):
        return _tensor(value, lease, kind)
    if isinstance(value, np.ndarray):
        copied = _copy(_numeric(value, name), lease, kind)
        return lambda: copied
    if hasattr(value, "__array__"):
        array = np.array(value)
        return lambda: _numeric(array, name)
    if isinstance(value, (list, tuple)):
        return _sequence(value, name, lease, kind)
    raise InputError(
        f"{name}: expected an array, a tensor, a nested tensor, or a list of rows, got {type(value).__name__}."
    )


def _sequence(value: Iterable[Any], name: str, lease: Lease, kind: Kind) -> Reader:
    items = list(value)
    if items and all(item is None or isinstance(item, (int, float)) for item in items):
        return lambda: _numbers(items, name)
    readers = [_row(item, f"{name}[{index}]", lease, kind) for index, item in enumerate(items)]

    def read() -> Rows:
        return [None if reader is None else np.asarray(reader()) for reader in readers]

    return read


def _row(item: Any, name: str, lease: Lease, kind: Kind) -> Reader | None:
    if item is None:
        return None
    if isinstance(item, (list, tuple)):
        numbers = list(item)
        return lambda: _numbers(numbers, name)
    return capture(item, name, lease, kind)


def _numbers(values: list[Any], name: str) -> NDArray[Any]:
    """Numbers as numpy takes them; with a None among them an object array, see `split_missing`."""
    if any(value is None for value in values):
        return np.asarray(values, object)
    return _numeric(np.asarray(values), name)


def _nested(value: Any, lease: Lease, kind: Kind) -> Reader:
    if hasattr(value, "offsets") and callable(value.offsets) and getattr(value, "lengths", lambda: None)() is None:
        try:
            values, offsets = _tensor(value.values(), lease, kind), _tensor(value.offsets(), lease, Kind.ID)
        except (RuntimeError, AttributeError):  # the strided layout has no offsets
            pass
        else:
            return lambda: list(np.split(np.asarray(values()), np.asarray(offsets())[1:-1]))
    rows = [_tensor(row, lease, kind) for row in value.unbind()]
    return lambda: [np.asarray(row()) for row in rows]


def _copy(array: NDArray[Any], lease: Lease, kind: Kind) -> NDArray[Any]:
    if kind is Kind.MASK:
        mask = lease.array(array.shape, np.bool_)
        np.not_equal(array, 0, out=mask)
        return mask
    dtype = np.dtype(np.int32) if kind is Kind.ID and array.dtype.kind in "iu" else array.dtype
    copied = lease.array(array.shape, dtype)
    np.copyto(copied, array, casting="unsafe")
    return copied


def _tensor(tensor: Any, lease: Lease, kind: Kind) -> Reader:
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # a distributed tensor: what this rank holds, without a collective
        tensor = tensor.to_local()
    torch = sys.modules["torch"]
    if tensor.device.type == "cpu":
        if tensor.dtype == torch.bfloat16 and kind is Kind.FLOAT:  # numpy has none: the upper halves of float32
            halves = _copy(tensor.contiguous().view(torch.int16).numpy(), lease, kind)
            return lambda: (halves.astype(np.uint32) << 16).view(np.float32)
        copied = _copy(_numpy(tensor), lease, kind)
        return lambda: copied
    tensor = tensor.bool() if kind is Kind.MASK else tensor.int() if kind is Kind.ID else tensor
    if tensor.device.type != "cuda":
        moved = tensor.to("cpu")
        return lambda: _numpy(moved)
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    copied_event = torch.cuda.Event()
    # The allocator hands memory out again in the order of this stream, so `tensor` may go before it was copied.
    copied_event.record(torch.cuda.current_stream(tensor.device))

    def read() -> NDArray[Any]:
        copied_event.synchronize()
        return _numpy(pinned)

    return read


def _numpy(tensor: Any) -> NDArray[Any]:
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()  # numpy has no bfloat16
    array: NDArray[Any] = tensor.numpy()
    return array


def _numeric(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.kind not in "biuf" and array.size:
        raise InputError(f"{name}: expected numbers, got dtype {array.dtype}. Give ragged data as a list of rows.")
    return array


__all__ = ["Kind", "Reader", "Rows", "capture"]
