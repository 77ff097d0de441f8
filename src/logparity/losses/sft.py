"""Supervised fine-tuning: negative log-prob of given responses."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from logparity.losses.base import Denominators, EntropyMode, LogitPrecision, Metrics, TokenTensors
from logparity.losses.reduce import ReductionConfig, reduce_tokens
from logparity.losses.select import as_mask, finite_tokens, mean_over, require_same_length, select
from logparity.losses.sequences import Sequences, require_sequence_ids
from logparity.losses.settings import require_kind


def sft_loss(log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """``-log_probs`` per token.

    Args:
        log_probs: ``[N]``, nats, with gradient, at temperature 1.
        mask: bool ``[N]``; other tokens may hold anything.

    Returns:
        Losses ``[N]``, 0 outside the mask, and the mean log-prob.
    """
    values = select(log_probs, mask)
    return -values, {"sft/log_prob": mean_over(values, mask)}


@dataclass(frozen=True, slots=True)
class SFTObjective:
    """Mean negative log-prob, an `Objective`.

    Args:
        reduction: how tokens become one number.
        strict: raise on NaN or infinity on an active token rather than leave it out and count it.

    Raises:
        ConfigError: the reduction is no `ReductionConfig`.
    """

    reduction: ReductionConfig = field(default_factory=ReductionConfig)
    strict: bool = False

    def __post_init__(self) -> None:
        require_kind("reduction", self.reduction, ReductionConfig)

    @property
    def precision(self) -> LogitPrecision:
        """Model precision: only log-probs are read."""
        return LogitPrecision.MODEL

    @property
    def entropy(self) -> EntropyMode:
        """None is needed."""
        return EntropyMode.NONE

    @property
    def temperature(self) -> float | None:
        """Always 1: the responses were written, not sampled, and a rollout's temperature is not theirs."""
        return 1.0

    def __call__(self, tokens: TokenTensors, denominators: Denominators) -> tuple[Tensor, Metrics]:
        """This micro-batch's share of the loss, and its metrics.

        Args:
            tokens: the micro-batch; only the log-probs are read.
            denominators: counts over the whole step.

        Returns:
            Scalar loss with gradient, and detached metrics.

        Raises:
            InputError: lengths differ, or the mask is not 0/1.
            NonFiniteError: strict, and an active token is not finite.
        """
        mask = as_mask(tokens.mask)
        require_same_length(log_probs=tokens.log_probs, mask=mask, sequence_ids=tokens.sequence_ids)
        require_sequence_ids(tokens)
        active = finite_tokens(tokens, mask, ("log_probs",), strict=self.strict)
        losses, metrics = sft_loss(tokens.log_probs, active)
        loss, share = reduce_tokens(losses, mask, Sequences.of(tokens), denominators, self.reduction)
        return loss, {"sft/nonfinite_fraction": mean_over(~active, mask), **metrics, "loss": share}
