"""Moments that merge: the moments of parts add up to the moments of the whole.

The combination rule is the pairwise update of Chan, Golub and LeVeque (1979), in float64 whatever comes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean, sum of squared deviations, and extremes of finite values.

    Args:
        count: number of values.
        mean: their mean; 0 where there are none.
        m2: sum of squared deviations from the mean.
        minimum: smallest value; +inf where there are none.
        maximum: largest value; -inf where there are none.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    @classmethod
    def of(cls, values: NDArray[Any]) -> Moments:
        """Moments of an array of finite values, any shape."""
        if values.size == 0:
            return cls()
        mean = float(values.mean(dtype=np.float64))
        m2 = float(np.square(values - np.float64(mean)).sum())
        return cls(values.size, mean, m2, float(values.min()), float(values.max()))

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        delta = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + delta * other.count / count,
            m2=self.m2 + other.m2 + delta * delta * self.count * other.count / count,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
        )

    @property
    def constant(self) -> bool:
        """Whether all values are the same."""
        return self.minimum == self.maximum

    @property
    def std(self) -> float | None:
        """Sample standard deviation (denominator ``count - 1``); None below two values."""
        return math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else None


@dataclass(frozen=True, slots=True)
class CoMoments:
    """Moments of two paired variables and the sum of products of their deviations.

    Args:
        x: moments of the first.
        y: moments of the second.
        co: sum of ``(x - mean_x) (y - mean_y)``.
    """

    x: Moments = Moments()
    y: Moments = Moments()
    co: float = 0.0

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any]) -> CoMoments:
        """Co-moments of two arrays of finite values of one shape."""
        mx, my = Moments.of(x), Moments.of(y)
        return cls(mx, my, float(((x - np.float64(mx.mean)) * (y - np.float64(my.mean))).sum()))

    def __add__(self, other: CoMoments) -> CoMoments:
        count = self.x.count + other.x.count
        cross = 0.0
        if self.x.count and other.x.count:
            cross = (other.x.mean - self.x.mean) * (other.y.mean - self.y.mean) * self.x.count * other.x.count / count
        return CoMoments(self.x + other.x, self.y + other.y, self.co + other.co + cross)

    @property
    def pearson(self) -> float | None:
        """Pearson correlation; None below two pairs or where one side is constant."""
        if self.x.count < 2 or self.x.constant or self.y.constant:
            return None
        return self.co / math.sqrt(self.x.m2 * self.y.m2)


__all__ = ["CoMoments", "Moments"]
