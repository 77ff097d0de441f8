"""What the report's numbers mean, for a person who has never seen them."""

from __future__ import annotations

GLOSSARY: tuple[tuple[str, str], ...] = (
    (
        "rollout probability",
        "What the engine that wrote the response reported for the token it drew. Its logarithm is rollout_log_probs.",
    ),
    (
        "train probability",
        "What the trainer computed for the same token, before it changed the weights. Its logarithm is old_log_probs.",
    ),
    (
        "|Δp|",
        "|rollout probability - train probability| of one token, between 0 and 1. With the same weights and exact "
        "arithmetic it is 0. Rounding in bf16 gives some thousandths on average, and single tokens above 0.1.",
    ),
    (
        "log_ratio",
        "old_log_probs - rollout_log_probs: train minus rollout, in nats. Above 0: the trainer finds the token more "
        "likely than the engine did. Below 0: less likely. A difference of 0.1 nats is a factor of 1.1.",
    ),
    (
        "k1, k2, k3",
        "Three estimates of the divergence KL(rollout || train) from the sampled tokens: mean(-L), mean(L²)/2 and "
        "mean(e^L - L - 1) with L = log_ratio. k3 is never negative.",
    ),
    (
        "effective sample size (ess)",
        "Share of the tokens that an importance-weighted mean really uses: 1 when both sides agree, near 0 when a few "
        "tokens carry all the weight.",
    ),
    ("Pearson", "Correlation of both probabilities over all tokens; 1 is perfect agreement."),
    (
        "confident disagreement",
        "Tokens to which the engine gave at least 0.5 while the trainer is over 2 nats lower: never rounding.",
    ),
    (
        "reward",
        "What the reward function gave a whole response. Nothing here says what a good value is: the task does.",
    ),
)
"""Term and meaning, in the order of the page."""

__all__ = ["GLOSSARY"]
