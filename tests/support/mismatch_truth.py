"""Mismatch metrics computed plainly, in float64 and with exact sums, for comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Row = tuple[np.ndarray, np.ndarray]
"""Rollout and train log-probs of the usable tokens of one sequence."""


def mean(values: Sequence[float] | np.ndarray) -> float:
    """Exact sum over count."""
    return math.fsum(map(float, values)) / len(values)


def mismatch_truth(rows: Sequence[Row]) -> dict[str, float]:
    """Every metric that a reader could compute with a pocket calculator, by the formulas of the documentation."""
    rollout = np.concatenate([r for r, _ in rows]).astype(np.float64)
    train = np.concatenate([t for _, t in rows]).astype(np.float64)
    ratio = train - rollout
    clamped = np.clip(ratio, -20, 20)
    p_rollout, p_train = np.exp(rollout), np.exp(train)
    diff, weight = np.abs(p_train - p_rollout), np.exp(clamped)
    log_weights = [math.fsum((t.astype(np.float64) - r.astype(np.float64)).tolist()) for r, t in rows if len(r)]
    sequence_weights = [math.exp(min(20, max(-20, w))) for w in log_weights]
    log_ppl_rollout = [-mean(r.astype(np.float64)) for r, _ in rows if len(r)]
    log_ppl_train = [-mean(t.astype(np.float64)) for _, t in rows if len(t)]
    gap = [t - r for t, r in zip(log_ppl_train, log_ppl_rollout, strict=True)]
    truth = {
        "mismatch/tokens": len(ratio),
        "mismatch/prob_diff_mean": mean(diff),
        "mismatch/prob_diff_max": diff.max(),
        "mismatch/log_ratio_mean": mean(ratio),
        "mismatch/log_ratio_abs_mean": mean(np.abs(ratio)),
        "mismatch/log_ratio_abs_max": np.abs(ratio).max(),
        "mismatch/k1": -mean(ratio),
        "mismatch/k2": mean(ratio**2) / 2,
        "mismatch/k3": mean(np.expm1(clamped) - clamped),
        "mismatch/ratio_mean": mean(weight),
        "mismatch/ess": mean(weight) ** 2 / mean(weight**2),
        "mismatch/multiplicative_error": mean(np.exp(np.abs(clamped))),
        "mismatch/ratio_outside_half_to_two": np.mean(np.abs(ratio) > math.log(2)),
        "mismatch/tis_truncated": np.mean(ratio > math.log(2)),
        "mismatch/icepop_masked": np.mean((ratio < math.log(0.5)) | (ratio > math.log(5))),
        "mismatch/confident_disagreement_tokens": np.sum((rollout >= np.float32(math.log(0.5))) & (ratio < -2)),
        "mismatch/clamped_tokens": np.sum(np.abs(ratio) > 20),
        "mismatch/perplexity_rollout": math.exp(-mean(rollout)),
        "mismatch/perplexity_train": math.exp(-mean(train)),
        "mismatch/sequences": len(log_weights),
        "mismatch/sequence_ratio_mean": mean(sequence_weights),
        "mismatch/sequence_log_ratio_abs_max": max(map(abs, log_weights)),
        "mismatch/length_times_kl": mean(np.expm1(clamped) - clamped) * len(ratio) / len(log_weights),
        "mismatch/sequence_log_ratio_abs_mean": mean(
            [mean(np.abs(t.astype(np.float64) - r.astype(np.float64))) for r, t in rows if len(r)]
        ),
        "rollout_corr/kl": -mean(ratio),
        "rollout_corr/chi2_seq": mean([w * w for w in sequence_weights]) - 1,
        "rollout_corr/training_ppl": mean([math.exp(min(20, x)) for x in log_ppl_train]),
        "rollout_corr/rollout_ppl": mean([math.exp(min(20, x)) for x in log_ppl_rollout]),
        "rollout_corr/training_log_ppl": mean(log_ppl_train),
        "rollout_corr/log_ppl_diff": mean(gap),
        "rollout_corr/log_ppl_abs_diff": mean(list(map(abs, gap))),
        "rollout_corr/log_ppl_diff_max": max(gap),
        "rollout_corr/log_ppl_diff_min": min(gap),
        "rollout_corr/ppl_ratio": mean([math.exp(min(20, max(-20, g))) for g in gap]),
    }
    if len(ratio) > 1:
        truth["mismatch/prob_diff_std"] = np.std(diff, ddof=1)
        truth["mismatch/log_ratio_std"] = np.std(ratio, ddof=1)
    return {key: float(value) for key, value in truth.items()}
