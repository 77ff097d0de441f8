"""By what tokens are grouped: position, distance to the end, turn, probability, version lag, labels of the sample."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logparity.records import FloatArray, IntArray

POSITION_EDGES: Final[tuple[int, ...]] = (
    *range(16),
    *(16 * 2**octave + 2 * 2**octave * eighth for octave in range(16) for eighth in range(8)),
)
"""First position of each bin: the first 16 one by one, then eight bins an octave, up to 2^20."""

PROBABILITY_EDGES: Final[tuple[float, ...]] = (
    *(0.0, 2.0**-14, 2.0**-12, 2.0**-10, 2.0**-8, 2.0**-7, 2.0**-6, 2.0**-5, 2.0**-4),
    *(k / 8 for k in range(1, 8)),
    *(1 - 2.0**-k for k in range(4, 8)),
)
"""Lower edge of each bin of the rollout probability; each is exact in 8 bits, so that a table can tell the bins."""

TURNS: Final = 16
"""Turns told apart; later ones count as the last."""
LAGS: Final = 16
"""Version lags told apart, from 0; larger ones count as the last."""

_PATTERNS = 0x3F80 + 2
"""Upper halves of the float32 patterns of 0..1, and a little above for rounding."""


class PositionTable:
    """Looks the bin of a position up; grows with the longest response."""

    __slots__ = ("_bins",)

    def __init__(self) -> None:
        self._bins: IntArray = np.zeros(0, np.int64)

    def bins(self, positions: IntArray, longest: int) -> IntArray:
        """Bins of positions.

        Args:
            positions: int64, any shape, in ``[0, longest)``.
            longest: response length.

        Returns:
            int64 indices into `POSITION_EDGES`.
        """
        if longest > len(self._bins):
            size = 1 << max(10, int(longest - 1).bit_length())
            self._bins = np.searchsorted(np.asarray(POSITION_EDGES), np.arange(size), side="right") - 1
        return self._bins.take(positions)


def probability_bins(probabilities: FloatArray) -> IntArray:
    """Bins of probabilities.

    Args:
        probabilities: float32 ``[n]`` in [0, 1], or above by rounding.

    Returns:
        int64 indices into `PROBABILITY_EDGES`.
    """
    return _PROBABILITY_TABLE.take(probabilities.view(np.int32) >> 16, mode="clip")


def lag_bins(lag: IntArray) -> IntArray:
    """Bins of version lags: 0 is negative (sampled by later weights than scored), then 0, 1, and so on."""
    return np.clip(lag, -1, LAGS - 1) + 1


def labels_of(group: str) -> tuple[str, ...]:
    """What the bins of a fixed group are called; ``position`` and ``distance_to_end`` by their first position."""
    if group in ("position", "distance_to_end"):
        return tuple(map(str, POSITION_EDGES))
    if group == "probability":
        return tuple(f"{edge:.6g}" for edge in PROBABILITY_EDGES)
    if group == "turn":
        return (*map(str, range(TURNS - 1)), f"{TURNS - 1}+")
    return ("negative", *map(str, range(LAGS - 1)), f"{LAGS - 1}+")


def _probability_table() -> NDArray[Any]:
    lower = (np.arange(_PATTERNS, dtype=np.uint32) << 16).view(np.float32)
    return np.searchsorted(np.asarray(PROBABILITY_EDGES, np.float32), lower, side="right") - 1


_PROBABILITY_TABLE = _probability_table()

FIXED_GROUPS: Final = ("position", "distance_to_end", "probability", "turn", "version_lag")

__all__ = [
    "FIXED_GROUPS",
    "LAGS",
    "POSITION_EDGES",
    "PROBABILITY_EDGES",
    "TURNS",
    "PositionTable",
    "labels_of",
    "lag_bins",
    "probability_bins",
]
