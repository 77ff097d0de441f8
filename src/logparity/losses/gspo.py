"""Clipped surrogate with one importance ratio per sequence (GSPO)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from logparity.losses.base import Metrics
from logparity.losses.clip import ClipConfig, clip_log_ratio, require_clip_bounds
from logparity.losses.select import fixed, select
from logparity.losses.sequences import Sequences


@dataclass(frozen=True, slots=True)
class GSPOConfig:
    """Bounds of the sequence ratio; far tighter than a token's, since a mean of log-ratios varies far less.

    Args:
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.

    Raises:
        ConfigError: the bounds are inverted.

    Source: GSPO, arXiv:2507.18071, eq. 5 to 7, bounds from section 5.1; gradient per token as in its eq. 13 and 14.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __post_init__(self) -> None:
        require_clip_bounds(self.clip_low, self.clip_high)


def gspo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sequences: Sequences,
    config: GSPOConfig,
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate per token, with the ratio of its sequence.

    ``ratio_s = exp(mean over the sequence of log_probs - old_log_probs)``, the same for each of its tokens. The
    gradient is taken per token, ``ratio_s * grad log_probs_t`` (GSPO-token): where the advantages of a sequence are
    equal, as in GRPO, the sum over the sequence is the gradient of the sequence form. So the exchange between ranks
    that share a sequence is one number per sequence, forward only.

    Args:
        log_probs: ``[N]``, nats, with gradient.
        old_log_probs: ``[N]``, nats; fixed, as are the advantages: no gradient reaches either.
        advantages: ``[N]``.
        mask: bool ``[N]``; other tokens may hold anything.
        sequences: which sequence each token belongs to.
        config: the bounds.

    Returns:
        Losses ``[N]``, 0 outside the mask, and metrics; the ratio is that of sequences, weighted by their tokens.
    """
    policy = select(log_probs, mask)
    mean = sequence_mean(policy.detach() - fixed(old_log_probs, mask), mask, sequences)
    log_ratio = select(sequences.spread(mean).to(policy.dtype), mask) + policy - policy.detach()
    return clip_log_ratio(log_ratio, fixed(advantages, mask), mask, ClipConfig(config.clip_low, config.clip_high))


def sequence_mean(values: Tensor, mask: Tensor, sequences: Sequences) -> Tensor:
    """Mean over the active tokens of each sequence, float64 ``[S]`` without gradient; 0 where there is none."""
    sums = sequences.sums(select(values, mask), mask)
    return sums[0] / sums[1].clamp(min=1)
