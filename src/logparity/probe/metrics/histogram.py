"""Fixed-size histograms of sizes: 128 bins an octave, so that a percentile is right to 0.8 percent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from logparity.records import FloatArray, IntArray

LOWEST_EXPONENT: Final = -48
_OCTAVES = 64
BINS: Final = _OCTAVES * 128 + 1
"""Bin 0 holds what is below 2^-48, zero included; the last one ends at 2^16."""
_FIRST = ((LOWEST_EXPONENT + 127) << 7) - 1


class SizeHistogram:
    """Counts of float32 values >= 0 by the upper 16 bits of their pattern.

    Args:
        counts: int64 ``[8193]``.
    """

    __slots__ = ("counts",)

    def __init__(self, counts: IntArray | None = None) -> None:
        self.counts = np.zeros(BINS, np.int64) if counts is None else counts

    def add(self, values: FloatArray, buffer: IntArray) -> None:
        """Count a block.

        Args:
            values: float32 ``[n]``, each in ``[0, 2^16)``.
            buffer: int64, at least ``[n]``, overwritten.
        """
        codes = buffer[: len(values)]
        np.right_shift(values.view(np.int32), 16, out=codes)
        np.subtract(codes, _FIRST, out=codes)
        np.maximum(codes, 0, out=codes)
        np.add.at(self.counts, codes, 1)

    def merge(self, other: SizeHistogram) -> None:
        """Add the counts of another part."""
        self.counts += other.counts

    def quantile(self, q: float) -> float | None:
        """The value at rank ``q (count - 1)``, taken in the middle of its bin.

        Args:
            q: in [0, 1].

        Returns:
            Within 0.4 percent of the order statistic, 0 below 2^-48; None without values.
        """
        total = int(self.counts.sum())
        if not total:
            return None
        rank = int(q * (total - 1) + 0.5)
        index = int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))
        return 0.0 if index == 0 else float((lower_edges()[index] + lower_edges()[index + 1]) / 2)

    def to_json(self) -> dict[str, list[int]]:
        """The bins that are not empty."""
        used = np.flatnonzero(self.counts)
        return {"bins": used.tolist(), "counts": self.counts[used].tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SizeHistogram:
        """The histogram whose `to_json` this is."""
        histogram = cls()
        histogram.counts[np.asarray(data["bins"], np.int64)] = data["counts"]
        return histogram


def lower_edges() -> FloatArray:
    """Smallest value of each bin, and the end of the last one, float32 ``[8194]``."""
    patterns = (np.arange(BINS + 1, dtype=np.uint32) + np.uint32(_FIRST)) << 16
    edges = patterns.view(np.float32)
    edges[0] = 0
    return edges


__all__ = ["BINS", "SizeHistogram", "lower_edges"]
