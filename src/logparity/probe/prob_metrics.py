"""Aggregates of ``|dp|`` under the names and formulas that verl logs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from logparity.probe.moments import CoMoments, Moments
from logparity.probe.pairs import TokenPairs
from logparity.records import FloatArray

PREFIX = "training/rollout_probs_diff"
PEARSON = "training/rollout_actor_probs_pearson_corr"


@dataclass(frozen=True, slots=True)
class ProbAggregates:
    """Mergeable aggregates in probability space.

    Args:
        diff: moments of ``|dp|``.
        probs: co-moments of train and rollout probability.
        excluded: active tokens left out because ``|dp|`` is not finite (a log-prob is NaN or +inf).
    """

    diff: Moments = field(default_factory=Moments)
    probs: CoMoments = field(default_factory=CoMoments)
    excluded: int = 0

    @classmethod
    def of(cls, pairs: TokenPairs, diff: FloatArray) -> ProbAggregates:
        """Aggregate one batch.

        Args:
            pairs: the log-probs.
            diff: float32 ``[B, R]``, `prob_diff` of the pairs.

        Returns:
            Aggregates over active tokens with a finite ``|dp|``. A log-prob of -inf is the probability 0 and counts.
        """
        use = pairs.mask & np.isfinite(diff)
        train, rollout = (np.exp(x[use]) for x in (pairs.old_log_probs, pairs.rollout_log_probs))
        return cls(Moments.of(diff[use]), CoMoments.of(train, rollout), int(pairs.mask.sum()) - int(use.sum()))

    def __add__(self, other: ProbAggregates) -> ProbAggregates:
        return ProbAggregates(self.diff + other.diff, self.probs + other.probs, self.excluded + other.excluded)

    def metrics(self) -> dict[str, float]:
        """The defined ones of valid, max, mean, std (``ddof = 1``), Pearson; ``valid`` is 1, or 0 without tokens."""
        values = {
            f"{PREFIX}_valid": float(self.diff.count > 0),
            f"{PREFIX}_max": self.diff.maximum if self.diff.count else None,
            f"{PREFIX}_mean": self.diff.mean if self.diff.count else None,
            f"{PREFIX}_std": self.diff.std,
            PEARSON: self.probs.pearson,
        }
        return {name: value for name, value in values.items() if value is not None}

    def undefined(self) -> str | None:
        """Why some of the metrics have no value; None where all have one."""
        if self.diff.count == 0:
            return f"no active token with a finite probability: {PREFIX}_max, _mean, _std and {PEARSON} are undefined"
        if self.diff.count == 1:
            return f"only one active token: {PREFIX}_std and {PEARSON} need two"
        sides = {"train": self.probs.x, "rollout": self.probs.y}
        constant = [name for name, side in sides.items() if side.constant]
        return f"{' and '.join(constant)} probabilities are constant: {PEARSON} is undefined" if constant else None


__all__ = ["PEARSON", "PREFIX", "ProbAggregates"]
