"""``|exp(rollout) - exp(old)|``: the gap between the two probabilities of each token, and its grid of scalars."""

from __future__ import annotations

import numpy as np

from logparity.probe.pairs import TokenPairs
from logparity.records import BoolArray, FloatArray

GRID_PREFIX = "training/rollout_probs_diff"


def prob_diff(pairs: TokenPairs) -> FloatArray:
    """Compute ``|exp(rollout_log_probs) - exp(old_log_probs)|`` where the mask is True.

    Args:
        pairs: the two log-probs of ``[B, R]`` tokens.

    Returns:
        float32 ``[B, R]``, exactly 0 where the mask is False, whatever the log-probs hold there. An active token
        without a usable log-prob (NaN, +inf) stays NaN or inf, so that it can be counted.
    """
    diff = np.zeros(pairs.mask.shape, np.float32)
    # Selecting, not multiplying by the mask: NaN * 0 is NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        diff[pairs.mask] = np.abs(np.exp(pairs.rollout_log_probs[pairs.mask]) - np.exp(pairs.old_log_probs[pairs.mask]))
    return diff


def grid(diff: FloatArray, mask: BoolArray, token_max_print: int, sample_max_print: int) -> dict[str, float]:
    """Name the first cells of a batch as scalar metrics, for a tracker that draws scalars only.

    Args:
        diff: float32 ``[B, R]``.
        mask: bool ``[B, R]``; cells where it is False are left out.
        token_max_print: positions per sample, from the start of the response.
        sample_max_print: samples, from the first row.

    Returns:
        ``training/rollout_probs_diff/s{sample}_p{position:04d}`` to value; one key a cell, finite values only.
    """
    corner = np.argwhere(mask[: max(sample_max_print, 0), : max(token_max_print, 0)])
    cells = {f"{GRID_PREFIX}/s{sample}_p{position:04d}": float(diff[sample, position]) for sample, position in corner}
    return {name: value for name, value in cells.items() if np.isfinite(value)}


__all__ = ["GRID_PREFIX", "grid", "prob_diff"]
