"""Memory for copies, used again: fresh pages cost more time than the copy itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

_SMALL: Final = 1 << 18
"""Bytes below which the allocator is quick enough."""

Buffer = NDArray[np.uint8]


class BufferPool:
    """Hands out arrays and takes their memory back.

    Args:
        kept: buffers that wait for their next use at most.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._free: list[Buffer] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Buffer:
        """A buffer of at least ``size`` bytes, contents undefined."""
        with self._lock:
            fitting = [(len(buffer), index) for index, buffer in enumerate(self._free) if size <= len(buffer)]
            if fitting:
                return self._free.pop(min(fitting)[1])
        # A little more than asked for: the next batch may be longer by a few tokens.
        return np.empty(size + size // 8, np.uint8)

    def give(self, buffers: Sequence[Buffer]) -> None:
        """Take buffers back that nobody reads any more; the largest are kept.

        Where no others wait, a second set is laid out: the thread that gives has the time for it, the one that takes
        has not.
        """
        with self._lock:
            alone = len(self._free) < len(buffers)
        if alone:
            buffers = [*buffers, *(np.zeros_like(buffer) for buffer in buffers)]
            for buffer in buffers[len(buffers) // 2 :]:
                buffer.fill(0)  # only writing makes the pages exist
        with self._lock:
            self._free = sorted([*self._free, *buffers], key=len)[-self._kept :] if self._kept else []


class Lease:
    """The buffers of one call.

    Args:
        pool: that they are from.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._taken: list[Buffer] = []

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array with undefined contents, good until `release`."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        if size < _SMALL:
            return np.empty(shape, kind)
        buffer = self._pool.take(size)
        self._taken.append(buffer)
        array: NDArray[Any] = buffer[:size].view(kind).reshape(shape)
        return array

    def release(self) -> None:
        """Give all buffers back; safe to call twice."""
        taken, self._taken = self._taken, []
        if taken:
            self._pool.give(taken)


__all__ = ["BufferPool", "Lease"]
