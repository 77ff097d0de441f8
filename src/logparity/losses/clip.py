"""Clipped surrogate of PPO and GRPO, with separate bounds and an optional dual clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from logparity.errors import ConfigError
from logparity.losses.base import Metrics
from logparity.losses.select import bounded_exp, fixed, mean_over, select
from logparity.losses.settings import require_numbers


@dataclass(frozen=True, slots=True)
class ClipConfig:
    """Bounds of the clipped surrogate.

    Args:
        clip_low: the ratio is clipped below at ``1 - clip_low``; in [0, 1].
        clip_high: the ratio is clipped above at ``1 + clip_high``; >= 0. DAPO's "clip-higher" takes 0.28.
        dual_clip: ``c > 1`` bounds the loss of a token with ``A < 0`` at ``-c * A``; None sets no bound.

    Raises:
        ConfigError: the bounds are inverted or ``dual_clip <= 1``.

    Source: PPO, arXiv:1707.06347, eq. 7; dual clip, arXiv:1912.09729; clip-higher, arXiv:2503.14476, eq. 10.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        require_clip_bounds(self.clip_low, self.clip_high)
        if self.dual_clip is not None:
            require_numbers(dual_clip=self.dual_clip)
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"dual_clip: expected a number > 1 (3 is common) or none, got {self.dual_clip}.")


def clip_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, config: ClipConfig
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate loss per token.

    ``max(-ratio * A, -clamp(ratio, 1 - clip_low, 1 + clip_high) * A)`` with ``ratio = exp(log_probs - old_log_probs)``,
    and for ``A < 0`` at most ``-dual_clip * A``.

    Args:
        log_probs: ``[N]``, nats, with gradient.
        old_log_probs: ``[N]``, nats; fixed, as are the advantages: no gradient reaches either.
        advantages: ``[N]``.
        mask: bool ``[N]``; other tokens may hold anything.
        config: the bounds.

    Returns:
        Losses ``[N]``, 0 outside the mask, and metrics of ratio, clipping, and the KL from the old policy.
    """
    log_ratio = select(log_probs, mask) - fixed(old_log_probs, mask)
    return clip_log_ratio(log_ratio, fixed(advantages, mask), mask, config)


def clip_log_ratio(log_ratio: Tensor, advantages: Tensor, mask: Tensor, config: ClipConfig) -> tuple[Tensor, Metrics]:
    """The same from a log-ratio, whatever it was formed over.

    Args:
        log_ratio: ``[N]``, nats, with gradient, 0 outside the mask.
        advantages: ``[N]``, 0 outside the mask.
        mask: bool ``[N]``.
        config: the bounds.

    Returns:
        Losses ``[N]`` and metrics.
    """
    ratio, clamped = bounded_exp(log_ratio)
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages
    losses = torch.maximum(plain, clipped)
    is_clipped = (clipped > plain).detach()
    metrics = dict(ratio_metrics(log_ratio, ratio, clamped, mask))
    metrics["policy/clip_fraction"] = mean_over(is_clipped, mask)
    metrics["policy/clip_low_fraction"] = mean_over(is_clipped & (advantages < 0), mask)
    metrics["policy/clip_high_fraction"] = mean_over(is_clipped & (advantages > 0), mask)
    if config.dual_clip is not None:
        bound = torch.where(advantages < 0, -config.dual_clip * advantages, torch.inf)
        metrics["policy/dual_clip_fraction"] = mean_over(losses > bound, mask)
        losses = torch.minimum(losses, bound)
    return losses, metrics


def ratio_metrics(log_ratio: Tensor, ratio: Tensor, clamped: Tensor, mask: Tensor) -> Metrics:
    """Mean ratio, share of ratios that hit the exponent bound, and KL from the old policy (k3 estimate, nats)."""
    kl = ratio - 1 - log_ratio.clamp(-20, 20)
    return {
        "policy/ratio": mean_over(ratio, mask),
        "policy/ratio_clamped_fraction": mean_over(clamped, mask),
        "policy/kl_old": mean_over(kl, mask),
    }


def require_clip_bounds(low: float, high: float) -> None:
    """Check the distances of the clip bounds from 1.

    Args:
        low: distance below.
        high: distance above.

    Raises:
        ConfigError: a bound is no number, or on the wrong side of 1.
    """
    require_numbers(clip_low=low, clip_high=high)
    if not (0 <= low <= 1 and high >= 0):
        raise ConfigError(
            f"clip bounds: expected clip_low in [0, 1] and clip_high >= 0, distances from a ratio of 1, got {low} and "
            f"{high}, which would clip the ratio to [{1 - low}, {1 + high}]."
        )
