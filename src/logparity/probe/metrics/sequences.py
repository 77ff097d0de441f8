"""What becomes of the mismatch over whole sequences: weights, perplexities, and the worst of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from logparity.notation import MAX_LOG_RATIO
from logparity.probe.metrics.exact_sums import ExactSums, Floats
from logparity.records import IntArray

ROW_SUMS: Final = (
    *("log_ratio", "log_ratio_abs_mean", "weight", "weight_sq", "ppl_rollout", "ppl_train", "log_ppl_rollout"),
    *("log_ppl_diff", "log_ppl_abs_diff", "ppl_ratio"),
)
"""Sums over sequences: ``W = sum L``, ``mean |L|``, ``e^W``, ``e^2W``, perplexities, their logs, difference of logs
(train minus rollout), its size, ``e^difference``; exponents clamped to +-20."""
WORST: Final = 8

ROW_COUNTS: Final = (
    *("sequences", "empty", "weight_clamped", "ppl_clamped", "weight_outside_half_to_two", "geometric_outside"),
)
"""Sequences with a token, rows without, clamped exponents, ``e^W`` and ``e^mean(L)`` outside [0.5, 2]."""


@dataclass(frozen=True, slots=True, order=True)
class WorstSequence:
    """A sequence with a large mismatch.

    Args:
        size: minus ``|sum L|``: the worst sorts first.
        key: of the sample.
        log_ratio: sum of ``L``, nats.
        mean: of ``L``, nats.
        tokens: that it has.
    """

    size: float
    key: str
    log_ratio: float
    mean: float
    tokens: int


class SequenceSums:
    """Mergeable sums over sequences that hold at least one usable token.

    Args:
        sums: of `ROW_SUMS`.
        counts: of `ROW_COUNTS`, and ``tokens_in_masked``: tokens of sequences outside the geometric bounds.
        low, high: extremes of the difference of log-perplexities, and of ``W``.
        worst: the `WORST` sequences by ``|W|``.
        longest: most tokens in one.
    """

    __slots__ = ("counts", "high", "longest", "low", "sums", "worst")

    def __init__(self) -> None:
        self.sums = ExactSums([0] * len(ROW_SUMS))
        self.counts = dict.fromkeys((*ROW_COUNTS, "tokens_in_masked"), 0)
        self.low = {"log_ppl_diff": math.inf, "log_ratio": math.inf}
        self.high = {"log_ppl_diff": -math.inf, "log_ratio": -math.inf}
        self.worst: list[WorstSequence] = []
        self.longest = 0

    def add(
        self, keys: Sequence[str], tokens: IntArray, log_ratio: Floats, log_ratio_abs: Floats, rollout: Floats
    ) -> None:
        """Add sequences.

        Args:
            keys: ``B`` sample keys.
            tokens: int64 ``[B]``, usable tokens.
            log_ratio: float64 ``[B]``, sum of ``L``.
            log_ratio_abs: float64 ``[B]``, sum of ``|L|``.
            rollout: float64 ``[B]``, sum of the rollout log-probs.
        """
        use = np.flatnonzero(tokens)
        self.counts["empty"] += len(tokens) - len(use)
        if not len(use):
            return
        n, weight_log = tokens[use], log_ratio[use]
        mean, log_ppl_rollout = weight_log / n, -rollout[use] / n
        exponents = np.stack([weight_log, log_ppl_rollout, log_ppl_rollout - mean, -mean])
        clamped = np.clip(exponents, -MAX_LOG_RATIO, MAX_LOG_RATIO)
        weight, ppl_rollout, ppl_train, ppl_ratio = np.exp(clamped)
        self.sums.add_block(
            np.stack(
                [
                    *(weight_log, log_ratio_abs[use] / n, weight, np.exp(2 * clamped[0])),
                    *(ppl_rollout, ppl_train, log_ppl_rollout, -mean, np.abs(mean), ppl_ratio),
                ]
            )
        )
        cut = exponents != clamped
        outside = np.abs(mean) > math.log(2)
        self.counts["sequences"] += len(use)
        self.counts["weight_clamped"] += int(cut[0].sum())
        self.counts["ppl_clamped"] += int(cut[1:].any(axis=0).sum())
        self.counts["weight_outside_half_to_two"] += int((np.abs(weight_log) > math.log(2)).sum())
        self.counts["geometric_outside"] += int(outside.sum())
        self.counts["tokens_in_masked"] += int(n[outside].sum())
        self.longest = max(self.longest, int(n.max()))
        for name, values in (("log_ppl_diff", -mean), ("log_ratio", weight_log)):
            self.low[name] = min(self.low[name], float(values.min()))
            self.high[name] = max(self.high[name], float(values.max()))
        order = np.argsort(-np.abs(weight_log), kind="stable")
        # Equal sizes at the cut are told apart by key, so that no split can change who is kept.
        last = np.abs(weight_log)[order[:WORST][-1]]
        for index in np.flatnonzero(np.abs(weight_log) >= last)[: WORST * 64].tolist():
            w = float(weight_log[index])
            self.worst.append(WorstSequence(-abs(w), keys[int(use[index])], w, float(mean[index]), int(n[index])))
        self.worst = sorted(self.worst)[:WORST]

    def merge(self, other: SequenceSums) -> None:
        """Add the sequences of another part."""
        self.sums.add(other.sums.units)
        for name in self.counts:
            self.counts[name] += other.counts[name]
        for name in self.low:
            self.low[name] = min(self.low[name], other.low[name])
            self.high[name] = max(self.high[name], other.high[name])
        self.worst = sorted([*self.worst, *other.worst])[:WORST]
        self.longest = max(self.longest, other.longest)

    def sum(self, name: str) -> float:
        """One of the sums of `ROW_SUMS`."""
        return self.sums.value(ROW_SUMS.index(name))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        empty = not self.counts["sequences"]
        return {
            "sums": [format(unit, "x") for unit in self.sums.units],
            "counts": self.counts,
            "low": None if empty else self.low,
            "high": None if empty else self.high,
            "worst": [[w.size, w.key, w.log_ratio, w.mean, w.tokens] for w in self.worst],
            "longest": self.longest,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SequenceSums:
        """The sums whose `to_json` this is."""
        found = cls()
        found.sums = ExactSums([int(unit, 16) for unit in data["sums"]])
        found.counts |= data["counts"]
        found.low |= data["low"] or {}
        found.high |= data["high"] or {}
        found.worst = [WorstSequence(*row) for row in data["worst"]]
        found.longest = int(data["longest"])
        return found


__all__ = ["ROW_COUNTS", "ROW_SUMS", "WORST", "SequenceSums", "WorstSequence"]
