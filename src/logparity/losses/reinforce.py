"""Plain policy gradient, for tokens sampled by the very policy that is trained."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from logparity.losses.base import Metrics
from logparity.losses.select import fixed, mean_over, select


@dataclass(frozen=True, slots=True)
class ReinforceConfig:
    """No importance ratio and no bounds.

    Source: Williams, "Simple statistical gradient-following algorithms" (1992), eq. 3.
    """


def reinforce_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """``-A * log_probs`` per token.

    Args:
        log_probs: ``[N]``, nats, with gradient.
        advantages: ``[N]``; fixed: no gradient reaches them.
        mask: bool ``[N]``; other tokens may hold anything.

    Returns:
        Losses ``[N]``, 0 outside the mask, and the mean log-prob.
    """
    policy = select(log_probs, mask)
    return -fixed(advantages, mask) * policy, {"policy/log_prob": mean_over(policy, mask)}
