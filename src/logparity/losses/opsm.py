"""Leave out bad sequences that the policy has moved away from (off-policy sequence masking)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from logparity.errors import ConfigError
from logparity.losses.base import Metrics
from logparity.losses.gspo import sequence_mean
from logparity.losses.select import fixed, mean_over
from logparity.losses.sequences import Sequences
from logparity.losses.settings import require_numbers


@dataclass(frozen=True, slots=True)
class OPSMConfig:
    """When a sequence is left out.

    Args:
        threshold: largest mean of ``old_log_probs - log_probs`` over a sequence, in nats per token, at which its tokens
            with negative advantage are still trained on.

    Raises:
        ConfigError: the threshold is not a finite number >= 0.

    Source: DeepSeek-V3.2, arXiv:2512.02556, section 3.1, "off-policy sequence masking".
    """

    threshold: float = 1e-4

    def __post_init__(self) -> None:
        require_numbers(threshold=self.threshold)
        if not 0 <= self.threshold < float("inf"):
            raise ConfigError(
                f"threshold of off-policy sequence masking: expected a number >= 0, got {self.threshold}."
            )


def opsm_keep(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sequences: Sequences,
    config: OPSMConfig,
) -> tuple[Tensor, Metrics]:
    """Which tokens stay: all but those with ``A < 0`` in sequences with ``mean(old - new) > threshold``.

    Args:
        log_probs: ``[N]``, nats; read without gradient.
        old_log_probs: ``[N]``, nats.
        advantages: ``[N]``.
        mask: bool ``[N]``; other tokens may hold anything.
        sequences: which sequence each token belongs to.
        config: the threshold.

    Returns:
        bool ``[N]``, False outside the mask, and the share of dropped tokens. They leave the numerators only.
    """
    drift = fixed(old_log_probs, mask) - fixed(log_probs, mask)
    moved = sequences.spread(sequence_mean(drift, mask, sequences) > config.threshold)
    dropped = mask & moved & (fixed(advantages, mask) < 0)
    return mask & ~dropped, {"policy/opsm_dropped_fraction": mean_over(dropped, mask)}
