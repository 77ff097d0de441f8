"""Policy gradient with a clipped importance weight (CISPO)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from logparity.losses.base import Metrics
from logparity.losses.clip import ratio_metrics, require_clip_bounds
from logparity.losses.select import bounded_exp, fixed, mean_over, select


@dataclass(frozen=True, slots=True)
class CISPOConfig:
    """Bounds of the importance weight; every token keeps a gradient, however far its ratio went.

    Args:
        clip_low: the weight is clipped below at ``1 - clip_low``; 1 sets no lower bound.
        clip_high: the weight is clipped above at ``1 + clip_high``.

    Raises:
        ConfigError: the bounds are inverted.

    Source: MiniMax-M1, arXiv:2506.13585, eq. 4 and 5 (no lower bound); an upper bound of 5, arXiv:2510.13786.
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        require_clip_bounds(self.clip_low, self.clip_high)


def cispo_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, config: CISPOConfig
) -> tuple[Tensor, Metrics]:
    """Weighted policy-gradient loss per token.

    ``-stop_gradient(clamp(ratio, 1 - clip_low, 1 + clip_high)) * A * log_probs``.

    Args:
        log_probs: ``[N]``, nats, with gradient.
        old_log_probs: ``[N]``, nats; fixed, as are the advantages: no gradient reaches either.
        advantages: ``[N]``.
        mask: bool ``[N]``; other tokens may hold anything.
        config: the bounds.

    Returns:
        Losses ``[N]``, 0 outside the mask, and metrics.
    """
    policy = select(log_probs, mask)
    log_ratio = policy.detach() - fixed(old_log_probs, mask)
    ratio, clamped = bounded_exp(log_ratio)
    weight = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    metrics = {
        **ratio_metrics(log_ratio, ratio, clamped, mask),
        "policy/clip_fraction": mean_over(weight != ratio, mask),
    }
    return -weight * fixed(advantages, mask) * policy, metrics
