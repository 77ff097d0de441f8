"""A running mean that weighs every position by its number of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def running_mean(mean: NDArray[np.float64], count: NDArray[np.int64], window: int) -> NDArray[np.float64]:
    """Mean over ``window`` neighbouring positions, each weighed by its tokens.

    Args:
        mean: float64 ``[R]``; what it holds where ``count`` is 0 is not looked at.
        count: int64 ``[R]``.
        window: number of positions; fewer at both ends.

    Returns:
        float64 ``[R]``; NaN where no position of the window has a token.
    """
    window = max(1, min(window, len(mean)))
    kernel = np.ones(window)
    total = np.convolve(np.where(count > 0, mean, 0) * count, kernel, mode="same")
    tokens = np.convolve(count, kernel, mode="same")
    smooth = np.full(len(mean), np.nan)
    np.divide(total, tokens, out=smooth, where=tokens > 0.5)
    return smooth


__all__ = ["running_mean"]
