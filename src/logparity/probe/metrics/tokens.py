"""The one pass over tokens: a block in, exact sums, counts, extremes, and histograms out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from logparity.notation import MAX_LOG_RATIO
from logparity.probe.metrics.census import Ends
from logparity.probe.metrics.exact_sums import MAX_BLOCK, TOP_FROM, ExactSums, Floats, Slicer, Slices, share_units
from logparity.probe.metrics.histogram import SizeHistogram
from logparity.records import FloatArray

WIDE: Final = (
    *("rollout", "log_ratio", "log_ratio_abs", "prob_diff", "k3", "prob_diff_sq", "log_ratio_sq", "u_sq", "error"),
)
"""Sums on the fine grid: the rollout log-prob, ``L``, ``|L|``, ``|dp|``, ``e^L - 1 - L``, ``dp^2``, ``L^2``, ``u^2``
with ``u = e^L - 1``, and ``e^|L| - 1``; ``L`` clamped where it is in an exponent."""
NARROW: Final = ("p_rollout", "p_train", "p_rollout_sq", "p_both")
"""Sums of probabilities and their products, on the grid 2^-46."""
COUNTS: Final = (
    *("tokens", "clamped", "ratio_outside_half_to_two", "tis_truncated", "icepop_masked", "confident_disagreement"),
)
EXTREMES: Final = ("prob_diff", "log_ratio", "rollout", "train")
"""Of these the smallest and largest value are kept; the smallest ``|dp|`` is not looked for."""

TIS_CAP: Final = 2.0
"""Upper bound of the truncated importance weight in the projects that use one."""
ICEPOP_BOUNDS: Final = (0.5, 5.0)
"""Outside these the weight is set to 0."""
CONFIDENT_PROB, CONFIDENT_GAP = 0.5, 2.0
"""The engine gave a token at least this probability, the trainer is more than this many nats lower: no rounding."""

_LN2 = math.log(2.0)
_SAFE_LOG_RATIO = 2.4
"""Below this all of `WIDE` stay below the top slice."""


@dataclass(frozen=True, slots=True)
class BlockValues:
    """What one block was turned into; valid until the next block.

    Args:
        slices: of `WIDE`.
        log_ratio_abs: float32 ``[n]``.
        prob_diff: float32 ``[n]``.
        p_rollout: float64 ``[n]``.
    """

    slices: Slices
    log_ratio_abs: FloatArray
    prob_diff: FloatArray
    p_rollout: Floats


class TokenSums:
    """Everything that is known of tokens without their place: mergeable, and exact in its sums.

    Args:
        wide: sums of `WIDE`.
        narrow: sums of `NARROW`.
        clamp: sum of ``L - clamp(L)``.
        counts: of `COUNTS`.
        low, high: extremes of `EXTREMES`.
        prob_diff, log_ratio: histograms of the sizes.
    """

    __slots__ = ("clamp", "counts", "high", "log_ratio", "low", "narrow", "prob_diff", "wide")

    def __init__(self) -> None:
        self.wide = ExactSums([0] * len(WIDE))
        self.narrow = ExactSums([0] * len(NARROW))
        self.clamp = ExactSums([0])
        self.counts = dict.fromkeys(COUNTS, 0)
        self.low = dict.fromkeys(EXTREMES, math.inf)
        self.high = dict.fromkeys(EXTREMES, -math.inf)
        self.prob_diff, self.log_ratio = SizeHistogram(), SizeHistogram()

    def merge(self, other: TokenSums) -> None:
        """Add the tokens of another part."""
        for mine, theirs in ((self.wide, other.wide), (self.narrow, other.narrow), (self.clamp, other.clamp)):
            mine.add(theirs.units)
        for name in COUNTS:
            self.counts[name] += other.counts[name]
        for name in EXTREMES:
            self.low[name] = min(self.low[name], other.low[name])
            self.high[name] = max(self.high[name], other.high[name])
        self.prob_diff.merge(other.prob_diff)
        self.log_ratio.merge(other.log_ratio)

    def sum(self, name: str) -> float:
        """One of the sums of `WIDE` or `NARROW`, correctly rounded."""
        return self.wide.value(WIDE.index(name)) if name in WIDE else self.narrow.value(NARROW.index(name))

    def to_json(self) -> dict[str, Any]:
        """As plain data; sums as hexadecimal text of multiples of 2^-79."""
        empty = not self.counts["tokens"]
        return {
            "wide": [format(unit, "x") for unit in self.wide.units],
            "narrow": [format(unit, "x") for unit in self.narrow.units],
            "clamp": format(self.clamp.units[0], "x"),
            "counts": self.counts,
            "low": None if empty else self.low,
            "high": None if empty else self.high,
            "prob_diff": self.prob_diff.to_json(),
            "log_ratio": self.log_ratio.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TokenSums:
        """The sums whose `to_json` this is."""
        sums = cls()
        sums.wide = ExactSums([int(unit, 16) for unit in data["wide"]])
        sums.narrow = ExactSums([int(unit, 16) for unit in data["narrow"]])
        sums.clamp = ExactSums([int(data["clamp"], 16)])
        sums.counts |= data["counts"]
        sums.low |= data["low"] or {}
        sums.high |= data["high"] or {}
        sums.prob_diff = SizeHistogram.from_json(data["prob_diff"])
        sums.log_ratio = SizeHistogram.from_json(data["log_ratio"])
        return sums


class TokenPass:
    """Turns blocks of clean tokens into `TokenSums`; owns the memory, about 7 MB."""

    def __init__(self) -> None:
        self._wide = np.empty((len(WIDE), MAX_BLOCK))
        self._plain = np.empty((4, MAX_BLOCK))
        self._slicer = Slicer(len(WIDE))
        self._float32 = np.empty((2, MAX_BLOCK), np.float32)
        self._codes = np.empty(MAX_BLOCK, np.int64)

    def add(self, sums: TokenSums, rollout: FloatArray, train: FloatArray, ends: Ends) -> BlockValues:
        """Add a block.

        Args:
            sums: what it is added to.
            rollout: float32 ``[n]``, ``1 <= n <= MAX_BLOCK``, no defects.
            train: float32 ``[n]``.
            ends: of the two.

        Returns:
            The block's values, for sums by group and by row.
        """
        n = len(rollout)
        wide, (p_rollout, p_train, u, spare) = self._wide[:, :n], self._plain[:, :n]
        log_rollout, ratio, size, diff, k3, diff_sq, ratio_sq, u_sq, error = wide
        np.copyto(log_rollout, rollout)
        np.copyto(ratio, train)
        np.exp(ratio, out=p_train)
        np.exp(log_rollout, out=p_rollout)
        np.subtract(ratio, log_rollout, out=ratio)
        np.subtract(p_train, p_rollout, out=diff)
        np.abs(diff, out=diff)
        np.square(diff, out=diff_sq)
        np.abs(ratio, out=size)
        np.square(ratio, out=ratio_sq)
        lowest, highest = float(ratio.min()), float(ratio.max())
        exponent = self._clamped(sums, ratio, spare, max(-lowest, highest))
        np.expm1(exponent, out=u)
        np.subtract(u, exponent, out=k3)
        np.square(u, out=u_sq)
        np.minimum(size, MAX_LOG_RATIO, out=error)
        np.expm1(error, out=error)
        small = self._float32[:, :n]
        np.copyto(small[0], diff, casting="same_kind")
        np.copyto(small[1], size, casting="same_kind")
        sums.prob_diff.add(small[0], self._codes)
        sums.log_ratio.add(small[1], self._codes)
        self._count(sums, n, rollout, ratio, size, (lowest, highest))
        self._extremes(sums, float(diff.max()), ends, (lowest, highest))
        self._narrow(sums, p_rollout, p_train, spare)
        top = max(-lowest, highest) >= _SAFE_LOG_RATIO or ends.rollout[0] <= -TOP_FROM
        slices = self._slicer.cut(wide, top=top)
        sums.wide.add(slices.totals())
        return BlockValues(slices, small[1], small[0], p_rollout)

    @staticmethod
    def _clamped(sums: TokenSums, ratio: Floats, spare: Floats, largest: float) -> Floats:
        if largest <= MAX_LOG_RATIO:
            return ratio
        np.clip(ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO, out=spare)
        cut = ratio[np.abs(ratio) > MAX_LOG_RATIO]
        sums.counts["clamped"] += len(cut)
        sums.clamp.add_block((cut - np.clip(cut, -MAX_LOG_RATIO, MAX_LOG_RATIO))[None])
        return spare

    @staticmethod
    def _count(
        sums: TokenSums, n: int, rollout: FloatArray, ratio: Floats, size: Floats, ends: tuple[float, float]
    ) -> None:
        counts, (lowest, highest) = sums.counts, ends
        counts["tokens"] += n
        if max(-lowest, highest) <= _LN2:  # the usual block: nothing below can be met
            return
        counts["ratio_outside_half_to_two"] += int(np.count_nonzero(size > _LN2))
        counts["tis_truncated"] += int(np.count_nonzero(ratio > math.log(TIS_CAP)))
        below, above = (math.log(bound) for bound in ICEPOP_BOUNDS)
        counts["icepop_masked"] += int(np.count_nonzero((ratio < below) | (ratio > above)))
        if lowest < -CONFIDENT_GAP:
            sure = (rollout >= math.log(CONFIDENT_PROB)) & (ratio < -CONFIDENT_GAP)
            counts["confident_disagreement"] += int(np.count_nonzero(sure))

    @staticmethod
    def _extremes(sums: TokenSums, largest_diff: float, ends: Ends, ratio: tuple[float, float]) -> None:
        found = {"prob_diff": (0.0, largest_diff), "log_ratio": ratio, "rollout": ends.rollout, "train": ends.train}
        for name, (low, high) in found.items():
            sums.low[name] = min(sums.low[name], low)
            sums.high[name] = max(sums.high[name], high)

    @staticmethod
    def _narrow(sums: TokenSums, p_rollout: Floats, p_train: Floats, spare: Floats) -> None:
        units = [share_units(p_rollout, spare), share_units(p_train, spare)]
        for other in (p_rollout, p_train):
            product = np.multiply(p_rollout, other, out=spare)
            units.append(share_units(product, spare))
        sums.narrow.add(units)


__all__ = [
    "CONFIDENT_GAP",
    "CONFIDENT_PROB",
    "COUNTS",
    "EXTREMES",
    "ICEPOP_BOUNDS",
    "NARROW",
    "TIS_CAP",
    "WIDE",
    "BlockValues",
    "TokenPass",
    "TokenSums",
]
