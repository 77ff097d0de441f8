"""Mismatch in log space: what ``|dp|`` hides in the tail, where a small probability is off by nats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from logparity.notation import MAX_LOG_RATIO
from logparity.probe.pairs import TokenPairs
from logparity.records import BoolArray, FloatArray

ROUNDING = 1e-4
"""A log-prob up to this far above 0 is 0 with rounding of the log-sum-exp; beyond it is no log-prob."""

CONFIDENT_PROB = 0.5
CONFIDENT_GAP = 2.0
"""The engine gave a token at least `CONFIDENT_PROB`, the trainer is more than this many nats lower: never rounding."""


def log_space_metrics(pairs: TokenPairs) -> dict[str, float]:
    """Compute the mismatch of one batch from ``L = old_log_probs - rollout_log_probs`` and ``w = e^L``.

    Tokens were sampled by the rollout engine, so means over them estimate expectations under it: k1, k2 and k3 estimate
    ``KL(rollout || train)`` and ``mean(w^2) - 1`` estimates ``chi2(train || rollout)``. ``L`` is clamped to +-20 nats
    before ``exp``. Tokens whose log-prob is not finite on either side, or positive, are excluded and counted.

    Args:
        pairs: the log-probs.

    Returns:
        ``mismatch/*`` to value, in nats where a log-prob; counts always, means only where there is a token.

    Source: Schulman, "Approximating KL divergence" (2020) for k1, k2, k3; Kong (1992) for the effective sample size.
    """
    rollout, train, mask = pairs.rollout_log_probs, pairs.old_log_probs, pairs.mask
    use = mask & np.isfinite(rollout) & np.isfinite(train) & (rollout <= ROUNDING) & (train <= ROUNDING)
    counts = {
        "mismatch/tokens": float(use.sum()),
        "mismatch/excluded_tokens": float(mask.sum() - use.sum()),
        # The trainer says that what was sampled cannot happen: another top-k/top-p, or another model.
        "mismatch/zero_train_prob_tokens": float((mask & np.isneginf(train) & np.isfinite(rollout)).sum()),
    }
    if not use.any():
        return counts
    log_ratio = train[use].astype(np.float64) - rollout[use]
    return {
        **counts,
        **_log_ratio(log_ratio),
        **_importance(log_ratio),
        **_perplexity(rollout[use], train[use]),
        **_confident(rollout[use], log_ratio),
        "mismatch/sequence_log_ratio_abs_max": _worst_sequence(log_ratio, use),
    }


def _log_ratio(log_ratio: NDArray[np.float64]) -> dict[str, float]:
    size = np.abs(log_ratio)
    clamped = np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "mismatch/log_ratio_mean": float(log_ratio.mean()),
        "mismatch/log_ratio_abs_mean": float(size.mean()),
        "mismatch/log_ratio_abs_p99": float(np.quantile(size, 0.99)),
        "mismatch/log_ratio_abs_max": float(size.max()),
        "mismatch/k1": float(-log_ratio.mean()),
        "mismatch/k2": float(np.square(log_ratio).mean() / 2),
        # expm1 keeps the digits that e^L - L - 1 loses for small L.
        "mismatch/k3": float((np.expm1(clamped) - clamped).mean()),
        "mismatch/clamped_tokens": float((size > MAX_LOG_RATIO).sum()),
    }


def _importance(log_ratio: NDArray[np.float64]) -> dict[str, float]:
    clamped = np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    weight = np.exp(clamped)
    mean, second = float(weight.mean()), float(np.square(weight).mean())
    return {
        "mismatch/ratio_mean": mean,
        "mismatch/ess": mean * mean / second,
        "mismatch/chi2_token": second - 1,
        "mismatch/multiplicative_error": float(np.exp(np.abs(clamped)).mean()),
        "mismatch/ratio_outside_half_to_two": float(((weight < 0.5) | (weight > 2.0)).mean()),
    }


def _perplexity(rollout: FloatArray, train: FloatArray) -> dict[str, float]:
    of_rollout, of_train = (float(-x.mean(dtype=np.float64)) for x in (rollout, train))
    return {
        "mismatch/perplexity_rollout": float(np.exp(min(of_rollout, 700.0))),
        "mismatch/perplexity_train": float(np.exp(min(of_train, 700.0))),
        "mismatch/perplexity_ratio": float(np.exp(np.clip(of_train - of_rollout, -MAX_LOG_RATIO, MAX_LOG_RATIO))),
    }


def _confident(rollout: FloatArray, log_ratio: NDArray[np.float64]) -> dict[str, float]:
    disagree = (rollout >= np.log(CONFIDENT_PROB)) & (log_ratio < -CONFIDENT_GAP)
    return {"mismatch/confident_disagreement_tokens": float(disagree.sum())}


def _worst_sequence(log_ratio: NDArray[np.float64], use: BoolArray) -> float:
    rows = np.nonzero(use)[0]
    return float(np.abs(np.bincount(rows, weights=log_ratio)).max())


__all__ = ["CONFIDENT_GAP", "CONFIDENT_PROB", "ROUNDING", "log_space_metrics"]
