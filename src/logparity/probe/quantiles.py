"""Exact quantiles of more values than memory holds, in two passes.

The bit pattern of a non-negative float32 grows with its value. The first pass counts the upper 16 bits of every
pattern, which tells in which of 32,640 bins each wanted rank lies; the second counts the lower 16 bits inside those
bins only. Counts of parts add up, so ranks and files may be counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.records import FloatArray, IntArray

_BINS = 0x7F80
"""Upper halves of the patterns of finite values: those below the pattern of +inf."""
_LOW = 1 << 16


def _no_counts() -> IntArray:
    return np.zeros(_BINS, np.int64)


@dataclass(frozen=True, slots=True)
class FloatHistogram:
    """Counts of finite float32 values >= 0, in bins that are at most 1/128 of their value wide.

    Args:
        counts: int64 ``[32640]``.
    """

    counts: IntArray = field(default_factory=_no_counts)

    @classmethod
    def of(cls, values: FloatArray) -> FloatHistogram:
        """Count an array of any shape."""
        return cls(np.bincount(_patterns(values) >> 16, minlength=_BINS))

    def __add__(self, other: FloatHistogram) -> FloatHistogram:
        return FloatHistogram(self.counts + other.counts)

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @staticmethod
    def lower_edges() -> FloatArray:
        """Smallest value of each bin, float32 ``[32640]``."""
        return (np.arange(_BINS, dtype=np.uint32) << 16).view(np.float32)


Blocks = Callable[[], Iterable[FloatArray]]
"""Gives the same values anew on every call, in blocks that fit into memory."""


def exact_quantiles(histogram: FloatHistogram, blocks: Blocks, q: Sequence[float]) -> list[float]:
    """Quantiles by linear interpolation between order statistics, as ``numpy.quantile`` gives them.

    Args:
        histogram: counts of all values that the blocks hold.
        blocks: the values, read once more.
        q: what to find, in [0, 1].

    Returns:
        One value per ``q``; NaN where there are no values.

    Memory: 0.5 MB for each bin that a wanted rank falls into, at most two per ``q``, beside one block.
    """
    total = histogram.total
    if total == 0:
        return [float("nan")] * len(q)
    places = [p * (total - 1) for p in q]
    ranks = sorted({r for place in places for r in (int(place), min(int(place) + 1, total - 1))})
    found = dict(zip(ranks, _order_statistics(histogram, blocks, ranks), strict=True))
    results = []
    for place in places:
        below, above = found[int(place)], found[min(int(place) + 1, total - 1)]
        results.append(below + (above - below) * (place - int(place)))
    return results


def _order_statistics(histogram: FloatHistogram, blocks: Blocks, ranks: Sequence[int]) -> list[float]:
    cumulative = np.cumsum(histogram.counts)
    bins = np.searchsorted(cumulative, ranks, side="right")
    inside = {int(b): np.zeros(_LOW, np.int64) for b in bins}
    for block in blocks():
        patterns = _patterns(block)
        upper = patterns >> 16
        for b, counts in inside.items():
            counts += np.bincount(patterns[upper == b] & (_LOW - 1), minlength=_LOW)
    values = []
    for b, rank in zip(bins, ranks, strict=True):
        before = int(cumulative[b - 1]) if b else 0
        low = int(np.searchsorted(np.cumsum(inside[int(b)]), rank - before, side="right"))
        values.append(float(np.uint32((int(b) << 16) | low).view(np.float32)))
    return values


def _patterns(values: FloatArray) -> NDArray[Any]:
    # Adding 0 turns -0.0, whose pattern is the largest, into 0.0.
    return (np.ravel(values) + np.float32(0)).view(np.uint32)


__all__ = ["Blocks", "FloatHistogram", "exact_quantiles"]
