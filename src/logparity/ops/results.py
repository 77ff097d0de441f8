"""What every log-prob operation returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class TokenLogProbs(NamedTuple):
    """Scores of the target tokens, in nats; float32 (float64 for float64 input), in the shape of the targets.

    Args:
        log_probs: log-prob of each target over the full vocabulary.
        entropy: entropy of the full-vocabulary distribution; None where it was not asked for.
        support_log_probs: log-prob of each target renormalised over its support; None without a support.
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    support_log_probs: Tensor | None = None
