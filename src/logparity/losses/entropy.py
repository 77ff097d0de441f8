"""Entropy bonus: rewards a policy for staying undecided."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from logparity.errors import ConfigError
from logparity.losses.base import EntropyMode, Metrics
from logparity.losses.select import mean_over, select
from logparity.losses.settings import require_numbers


@dataclass(frozen=True, slots=True)
class EntropyConfig:
    """The entropy term of a policy loss, ``-coefficient * entropy``.

    Args:
        coefficient: factor of the bonus; 0 leaves it out, and then nothing of it is computed or kept.
        report: compute the entropy, without gradient, for the metrics also where the coefficient is 0.

    Raises:
        ConfigError: the coefficient is not finite.

    Source: Mnih et al., arXiv:1602.01783, section 4.
    """

    coefficient: float = 0.0
    report: bool = False

    def __post_init__(self) -> None:
        require_numbers(coefficient=self.coefficient)
        if not abs(self.coefficient) < float("inf"):
            raise ConfigError(f"coefficient of the entropy: expected a finite number, got {self.coefficient}.")

    @property
    def mode(self) -> EntropyMode:
        """What the log-prob operation has to compute."""
        if self.coefficient != 0:
            return EntropyMode.GRAD
        return EntropyMode.VALUE if self.report else EntropyMode.NONE


def entropy_loss(entropy: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """Negative entropy per token, before the coefficient.

    Args:
        entropy: ``[N]``, nats.
        mask: bool ``[N]``; other tokens may hold anything.

    Returns:
        ``-entropy`` ``[N]``, 0 outside the mask, and the mean entropy.
    """
    values = select(entropy, mask)
    return -values, {"entropy": mean_over(values, mask)}
