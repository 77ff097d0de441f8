"""Sums that come out the same, to the last bit, however the numbers were split and ordered.

A float64 sum depends on the order of its additions. Here every number is first rounded to the grid 2^-79 in slices
(multiples of 2^7, of 2^-40, of 2^-79), and the slices are added as integers, which is exact. What one number loses is
at most 2^-80, so even a mean of 1e-12 keeps twelve digits.

Adding 1.5 * 2^k to a number rounds it to a multiple of 2^(k-52) and puts that multiple into the low bits of the float:
the integer sum of the bit patterns is the sum of the multiples, once the pattern of 1.5 * 2^k is taken off as often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logparity.records import IntArray

Floats = NDArray[np.float64]

MAX_BLOCK: Final = 1 << 15
"""Numbers that may be added at once without an integer overflow."""
LIMIT: Final = 2.0**58
"""Every number has to be smaller than this."""
TOP_FROM: Final = 128.0
"""From here on a number needs the slice of 2^7."""
FINE_BITS: Final = 79
MIDDLE_BITS: Final = 40

_TOP = 1.5 * 2.0**59
_MIDDLE = 1.5 * 2.0**12
_FINE = 1.5 * 2.0**-27
_SHARE, _SHARE_BITS = 1.5 * 2.0**6, 46
_MIDDLE_PATTERN, _FINE_PATTERN, _SHARE_PATTERN = (
    np.float64(shift).view(np.int64) for shift in (_MIDDLE, _FINE, _SHARE)
)


class FixedTable:
    """A table of exact sums in three int64 parts: ``whole + middle * 2^-40 + fine * 2^-79``.

    Args:
        shape: of the table.
    """

    __slots__ = ("fine", "middle", "whole")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.whole, self.middle, self.fine = (np.zeros(shape, np.int64) for _ in range(3))

    def carry(self) -> None:
        """Move what fills a part into the next one, so that none overflows."""
        self.middle += self.fine >> (FINE_BITS - MIDDLE_BITS)
        self.fine &= (1 << (FINE_BITS - MIDDLE_BITS)) - 1
        self.whole += self.middle >> MIDDLE_BITS
        self.middle &= (1 << MIDDLE_BITS) - 1

    def add(self, other: FixedTable) -> None:
        """Add a table of the same shape."""
        self.whole += other.whole
        self.middle += other.middle
        self.fine += other.fine
        self.carry()

    def values(self) -> Floats:
        """The sums in float64; relative error at most 2^-52."""
        self.carry()
        # After the carry the parts do not cancel unless the sum is negative and tiny, where 2^-79 is its own limit.
        values: Floats = self.whole.astype(np.float64) + (self.middle * 2.0**-MIDDLE_BITS + self.fine * 2.0**-FINE_BITS)
        return values

    def units(self) -> list[int]:
        """The sums in multiples of 2^-79, flat."""
        parts = zip(self.whole.ravel().tolist(), self.middle.ravel().tolist(), self.fine.ravel().tolist(), strict=True)
        return [(w << FINE_BITS) + (m << (FINE_BITS - MIDDLE_BITS)) + f for w, m, f in parts]

    @classmethod
    def from_units(cls, units: list[int], shape: tuple[int, ...]) -> FixedTable:
        """The table whose `units` these are."""
        table = cls(shape)
        table.fine.ravel()[:] = [u & ((1 << (FINE_BITS - MIDDLE_BITS)) - 1) for u in units]
        table.middle.ravel()[:] = [(u >> (FINE_BITS - MIDDLE_BITS)) & ((1 << MIDDLE_BITS) - 1) for u in units]
        table.whole.ravel()[:] = [u >> FINE_BITS for u in units]
        return table


@dataclass(frozen=True, slots=True)
class Slices:
    """A block of numbers cut into integers.

    Args:
        middle: int64 ``[Q, n]``, multiples of 2^-40, each offset by one and the same pattern.
        fine: int64 ``[Q, n]``, multiples of 2^-79 of what is left, offset likewise.
        top: entries that were 128 or more: row, columns, and the multiples of 2^7 that were taken out.
    """

    middle: IntArray
    fine: IntArray
    top: tuple[tuple[int, IntArray, IntArray], ...] = ()

    def totals(self) -> list[int]:
        """Exact sums of the ``Q`` rows, in multiples of 2^-79."""
        n = np.array([self.middle.shape[1]])
        middle = self.middle.sum(axis=1) - _offset(n, _MIDDLE_PATTERN)
        fine = self.fine.sum(axis=1) - _offset(n, _FINE_PATTERN)
        pairs = zip(middle.tolist(), fine.tolist(), strict=True)
        sums = [(m << (FINE_BITS - MIDDLE_BITS)) + f for m, f in pairs]
        for row, _, multiples in self.top:
            sums[row] += sum(multiples.tolist()) << (FINE_BITS + 7)
        return sums

    def by_segment(self, rows: slice, starts: IntArray, counts: IntArray) -> FixedTable:
        """Exact sums over consecutive segments.

        Args:
            rows: of the block.
            starts: int64 ``[S]``, first column of each segment; none is empty.
            counts: int64 ``[S]``, columns of each.

        Returns:
            A table ``[K, S]``.
        """
        table = FixedTable((self.middle[rows].shape[0], len(starts)))
        table.middle = np.add.reduceat(self.middle[rows], starts, axis=1) - _offset(counts, _MIDDLE_PATTERN)
        table.fine = np.add.reduceat(self.fine[rows], starts, axis=1) - _offset(counts, _FINE_PATTERN)
        picked = range(self.middle.shape[0])[rows]
        for row, columns, multiples in self.top:
            if row in picked:
                segments = np.searchsorted(starts, columns, side="right") - 1
                np.add.at(table.whole[picked.index(row)], segments, multiples << 7)
        table.carry()
        return table

    def by_code(self, rows: slice, codes: IntArray, counts: IntArray) -> FixedTable:
        """Exact sums over columns of the same code.

        Args:
            rows: of the block.
            codes: int64 ``[n]`` in ``[0, C)``.
            counts: int64 ``[C]``, columns of each code.

        Returns:
            A table ``[K, C]``.
        """
        picked = range(self.middle.shape[0])[rows]
        table = FixedTable((len(picked), len(counts)))
        for k, row in enumerate(picked):
            np.add.at(table.middle[k], codes, self.middle[row])
            np.add.at(table.fine[k], codes, self.fine[row])
        table.middle -= _offset(counts, _MIDDLE_PATTERN)
        table.fine -= _offset(counts, _FINE_PATTERN)
        for row, columns, multiples in self.top:
            if row in picked:
                np.add.at(table.whole[picked.index(row)], codes[columns], multiples << 7)
        table.carry()
        return table


class Slicer:
    """Cuts blocks into `Slices`; owns the memory for them.

    Args:
        rows: ``Q``, numbers per column.
        size: most columns of a block.
    """

    def __init__(self, rows: int, size: int = MAX_BLOCK) -> None:
        self._middle, self._fine = np.empty((rows, size)), np.empty((rows, size))

    def cut(self, block: Floats, *, top: bool = True) -> Slices:
        """Cut a block, whose larger numbers are lost.

        Args:
            block: float64 ``[Q, n]``, ``n <= MAX_BLOCK``, finite, below `LIMIT`.
            top: whether a number may be as large as `TOP_FROM`.

        Returns:
            Its slices, valid until the next call.
        """
        n = block.shape[1]
        taken = _take_top(block) if top else ()
        middle, fine = self._middle[: len(block), :n], self._fine[: len(block), :n]
        for x, m, f in zip(block, middle, fine, strict=True):
            np.add(x, _MIDDLE, out=m)
            np.subtract(m, _MIDDLE, out=f)
            np.subtract(x, f, out=f)
            np.add(f, _FINE, out=f)
        return Slices(middle.view(np.int64), fine.view(np.int64), taken)


class ExactSums:
    """``Q`` running sums of numbers below `LIMIT`.

    Args:
        units: the sums in multiples of 2^-79.
    """

    __slots__ = ("units",)

    def __init__(self, units: list[int]) -> None:
        self.units = units

    def add(self, units: list[int]) -> None:
        """Add sums in multiples of 2^-79."""
        self.units = [a + b for a, b in zip(self.units, units, strict=True)]

    def add_block(self, block: Floats) -> None:
        """Add the rows of ``[Q, n]``, any ``n``; the block is left as it is."""
        slicer = Slicer(len(block), min(block.shape[1], MAX_BLOCK))
        for start in range(0, block.shape[1], MAX_BLOCK):
            self.add(slicer.cut(block[:, start : start + MAX_BLOCK].copy()).totals())

    def value(self, index: int) -> float:
        """One sum, correctly rounded."""
        return self.units[index] / (1 << FINE_BITS)


def share_units(values: Floats, buffer: Floats) -> int:
    """Sum numbers below 8, which need no finer grid than 2^-46, in a third of the time.

    Args:
        values: float64 ``[n]``, ``n <= MAX_BLOCK``.
        buffer: float64, at least ``[n]``, overwritten.

    Returns:
        The sum in multiples of 2^-79.
    """
    patterns = np.add(values, _SHARE, out=buffer[: len(values)]).view(np.int64)
    multiples = int(patterns.sum()) - len(values) * int(_SHARE_PATTERN)
    return ((multiples + 2**63) % 2**64 - 2**63) << (FINE_BITS - _SHARE_BITS)


def _take_top(block: Floats) -> tuple[tuple[int, IntArray, IntArray], ...]:
    found = []
    for row, x in enumerate(block):
        if x.max(initial=0.0) < TOP_FROM and x.min(initial=0.0) > -TOP_FROM:
            continue
        columns = np.flatnonzero(np.abs(x) >= TOP_FROM)
        rounded = (x[columns] + _TOP) - _TOP
        x[columns] -= rounded
        found.append((row, columns, (rounded / 128).astype(np.int64)))
    return tuple(found)


def _offset(counts: IntArray, pattern: np.int64) -> IntArray:
    # The product wraps around, and so did the sum that it is taken off: the difference is right.
    return counts * pattern


__all__ = [
    "FINE_BITS",
    "LIMIT",
    "MAX_BLOCK",
    "TOP_FROM",
    "ExactSums",
    "FixedTable",
    "Floats",
    "Slicer",
    "Slices",
    "share_units",
]
