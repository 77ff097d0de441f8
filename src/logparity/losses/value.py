"""Clipped squared error of a value head (PPO's critic)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from logparity.errors import ConfigError
from logparity.losses.base import Denominators, EntropyMode, LogitPrecision, Metrics, ValueTensors
from logparity.losses.reduce import ReductionConfig, reduce_tokens
from logparity.losses.select import as_mask, finite_tokens, fixed, mean_over, require_same_length, select
from logparity.losses.sequences import Sequences, require_sequence_ids
from logparity.losses.settings import require_kind, require_numbers


@dataclass(frozen=True, slots=True)
class ValueConfig:
    """The value loss.

    Args:
        clip: a value may move by this much from the old one before its clipped error counts; None does not clip.
        coefficient: factor of the loss; 0.5 makes the gradient of the plain error ``values - returns``.

    Raises:
        ConfigError: clip or coefficient is not positive.

    Source: clipped value loss of openai/baselines ``ppo2``; generalised advantages, arXiv:1506.02438.
    """

    clip: float | None = 0.2
    coefficient: float = 0.5

    def __post_init__(self) -> None:
        require_numbers(coefficient=self.coefficient, **({} if self.clip is None else {"clip": self.clip}))
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip of the value loss: expected a number > 0 or none, got {self.clip}.")
        if not 0 < self.coefficient < float("inf"):
            raise ConfigError(f"coefficient of the value loss: expected a finite number > 0, got {self.coefficient}.")


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, config: ValueConfig
) -> tuple[Tensor, Metrics]:
    """Squared error per token.

    ``coefficient * max((v - R)^2, (clamp(v, v_old - clip, v_old + clip) - R)^2)``.

    Args:
        values: ``[N]``, with gradient.
        old_values: ``[N]``, before the update.
        returns: ``[N]``, what the values should have been.
        mask: bool ``[N]``; other tokens may hold anything.
        config: clip and factor.

    Returns:
        Losses ``[N]``, 0 outside the mask, and metrics.
    """
    now, target = select(values, mask), fixed(returns, mask)
    error = (now - target).square()
    metrics = {"value/mean": mean_over(now, mask), "value/error": mean_over(error, mask)}
    if config.clip is not None:
        old = fixed(old_values, mask)
        clipped = (torch.clamp(now, old - config.clip, old + config.clip) - target).square()
        metrics["value/clip_fraction"] = mean_over(clipped > error, mask)
        error = torch.maximum(error, clipped)
    return config.coefficient * error, metrics


@dataclass(frozen=True, slots=True)
class ValueObjective:
    """The value loss of a micro-batch.

    Args:
        config: clip and factor.
        reduction: how tokens become one number.
        strict: raise on NaN or infinity on an active token rather than leave it out and count it.

    Raises:
        ConfigError: a part is not a config of its kind.
    """

    config: ValueConfig = field(default_factory=ValueConfig)
    reduction: ReductionConfig = field(default_factory=ReductionConfig)
    strict: bool = False

    def __post_init__(self) -> None:
        require_kind("config", self.config, ValueConfig)
        require_kind("reduction", self.reduction, ReductionConfig)

    @property
    def precision(self) -> LogitPrecision:
        """Float32: a value is a regression target, and bf16 has three digits."""
        return LogitPrecision.FP32

    @property
    def entropy(self) -> EntropyMode:
        """None is needed."""
        return EntropyMode.NONE

    def __call__(self, tokens: ValueTensors, denominators: Denominators) -> tuple[Tensor, Metrics]:
        """This micro-batch's share of the loss, and its metrics.

        Args:
            tokens: the micro-batch.
            denominators: counts over the whole step.

        Returns:
            Scalar loss with gradient, and detached metrics.

        Raises:
            InputError: lengths differ, or the mask is not 0/1.
            NonFiniteError: strict, and an active token is not finite.
        """
        mask = as_mask(tokens.mask)
        require_same_length(
            values=tokens.values,
            old_values=tokens.old_values,
            returns=tokens.returns,
            mask=mask,
            sequence_ids=tokens.sequence_ids,
        )
        require_sequence_ids(tokens)
        active = finite_tokens(tokens, mask, ("values", "old_values", "returns"), strict=self.strict)
        losses, metrics = value_loss(tokens.values, tokens.old_values, tokens.returns, active, self.config)
        loss, share = reduce_tokens(losses, mask, Sequences.of(tokens), denominators, self.reduction)
        return loss, {"value/nonfinite_fraction": mean_over(~active, mask), **metrics, "value/loss": share}
