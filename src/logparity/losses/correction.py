"""Correct for tokens having been sampled by another policy than the trainer's: weights, rejection, veto.

The rollout engine's probabilities differ from the trainer's for the same weights (kernels, precision, stale weights).
Everything here is formed from ``log_ratio = old_log_probs - rollout_log_probs``, fixed data without gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from logparity.errors import ConfigError, InputError
from logparity.losses.base import Metrics, Ratio
from logparity.losses.select import bounded_exp, fixed, mean_over, select
from logparity.losses.sequences import Sequences
from logparity.losses.settings import as_choice, require_kind, require_numbers


class RatioLevel(str, Enum):
    """What a ratio train/rollout is formed over."""

    TOKEN = "token"
    """``exp(log_ratio_t)``, one per token."""
    SEQUENCE = "sequence"
    """``exp(sum over the sequence)``: unbiased, with a variance that grows with the length."""
    GEOMETRIC = "geometric"
    """``exp(mean over the sequence)``: comparable between lengths."""


class WeightMode(str, Enum):
    """What happens to a ratio outside ``[low, high]``."""

    TRUNCATE = "truncate"
    """Cut at ``high`` (TIS)."""
    CLIP = "clip"
    """Cut at both bounds."""
    MASK = "mask"
    """Becomes 0 (IcePop; masked importance sampling)."""
    NONE = "none"
    """No weights at all: every weight is 1; for rejection alone."""


@dataclass(frozen=True, slots=True)
class RejectionConfig:
    """Which tokens or sequences are not trained on.

    Args:
        level: what the ratio is formed over; above ``TOKEN`` a whole sequence is rejected.
        low: smallest ratio train/rollout that is kept, taken literally; >= 0.
        high: largest one that is kept, taken literally: it need not be ``1 / low``.

    Raises:
        ConfigError: there is no such level, or the bounds are inverted or do not hold 1.
    """

    level: RatioLevel = RatioLevel.GEOMETRIC
    low: float = 0.99
    high: float = 1.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", as_choice(RatioLevel, self.level, "level of the rejection"))
        _require_bounds("rejection", self.low, self.high)


@dataclass(frozen=True, slots=True)
class CorrectionConfig:
    """The off-policy correction of a policy loss. The default is truncated importance sampling at 2.

    Args:
        mode: what happens to ratios outside the bounds.
        level: what the ratio is formed over.
        low: lower bound of the ratio train/rollout; read by ``CLIP`` and ``MASK``.
        high: upper bound.
        rejection: leave out tokens or sequences, from the surrogate, the KL term, and the entropy alike.
        token_veto: leave out a sequence with any token whose ratio is below this, e.g. 1e-4; None vetoes nothing.
        batch_normalise: divide weights by their mean over the step, which is handed in as `Denominators.mean_weight`.

    Raises:
        ConfigError: there is no such mode or level, or bounds are inverted or given where they have no effect.

    Source: TIS, https://fengyao.notion.site/off-policy-rl; IcePop, arXiv:2510.18855; sequence and
    geometric levels, rejection, and veto, https://richardli.xyz/rl-collapse.
    """

    mode: WeightMode = WeightMode.TRUNCATE
    level: RatioLevel = RatioLevel.TOKEN
    low: float = 0.0
    high: float = 2.0
    rejection: RejectionConfig | None = None
    token_veto: float | None = None
    batch_normalise: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", as_choice(WeightMode, self.mode, "mode of the correction"))
        object.__setattr__(self, "level", as_choice(RatioLevel, self.level, "level of the correction"))
        require_kind("rejection", self.rejection, RejectionConfig, type(None))
        _require_bounds("correction", self.low, self.high)
        if self.mode is WeightMode.TRUNCATE and self.low != 0:
            raise ConfigError(
                f"low: expected 0 with mode truncate, which reads only high, got {self.low}. Use mode clip."
            )
        if self.mode is WeightMode.NONE and self.batch_normalise:
            raise ConfigError("batch_normalise: expected a mode with weights, got mode none.")
        if self.token_veto is not None:
            require_numbers(token_veto=self.token_veto)
        if self.token_veto is not None and not 0 < self.token_veto < 1:
            raise ConfigError(f"token_veto: expected a ratio in (0, 1), e.g. 1e-4, or none, got {self.token_veto}.")

    @classmethod
    def icepop(cls, low: float = 0.5, high: float = 5.0) -> CorrectionConfig:
        """Token weights that are 0 outside ``[low, high]``."""
        return cls(mode=WeightMode.MASK, level=RatioLevel.TOKEN, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Correction:
    """What a correction does to each token.

    Args:
        weights: ``[N]``, factor of the surrogate, without gradient; 0 outside the mask.
        keep: bool ``[N]``: active and not rejected.
        metrics: shares and means over the mask.
    """

    weights: Tensor
    keep: Tensor
    metrics: Metrics


def correct(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    sequences: Sequences,
    config: CorrectionConfig,
    *,
    mean_weight: float | None = None,
) -> Correction:
    """Weights and kept tokens of an off-policy correction.

    Args:
        old_log_probs: ``[N]``, nats, of the trainer before the update.
        rollout_log_probs: ``[N]``, nats, as the engine reported them.
        mask: bool ``[N]``; other tokens may hold anything.
        sequences: which sequence each token belongs to.
        config: the correction.
        mean_weight: mean weight over the step, from `mean_weight_share`; read only with ``batch_normalise``.

    Returns:
        Weights, kept tokens, and metrics.

    Raises:
        InputError: ``batch_normalise`` without ``mean_weight``.
    """
    log_ratio = fixed(old_log_probs, mask) - fixed(rollout_log_probs, mask)
    weights, raw, clamped = _weights(log_ratio, mask, sequences, config)
    keep = mask & ~_rejected(log_ratio, mask, sequences, config)
    metrics = {
        "correction/weight": mean_over(weights, mask),
        "correction/outside_fraction": mean_over(weights != raw, mask),
        "correction/ratio_clamped_fraction": mean_over(clamped, mask),
        "correction/rejected_fraction": mean_over(~keep, mask),
        "correction/kl_rollout": mean_over(bounded_exp(log_ratio)[0] - 1 - log_ratio.clamp(-20, 20), mask),
    }
    if config.batch_normalise:
        if mean_weight is None:
            raise InputError(
                "mean_weight: expected the mean correction weight of the step for batch_normalise, got none. Merge "
                "mean_weight_share of every micro-batch and rank and hand its value in as Denominators.mean_weight."
            )
        weights = weights / mean_weight if mean_weight > 0 else weights
    return Correction(weights, keep, metrics)


def mean_weight_share(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, sequences: Sequences, config: CorrectionConfig
) -> Ratio:
    """A micro-batch's share of the step's mean weight: over tokens, or over sequences where the level is one of them.

    Args:
        old_log_probs: ``[N]``, nats.
        rollout_log_probs: ``[N]``, nats.
        mask: bool ``[N]``; other tokens may hold anything.
        sequences: which sequence each token belongs to.
        config: the correction.

    Returns:
        A `Ratio`; the sum over micro-batches and ranks has the mean as its value.
    """
    log_ratio = fixed(old_log_probs, mask) - fixed(rollout_log_probs, mask)
    weights, _, _ = _weights(log_ratio, mask, sequences, config)
    if config.level is RatioLevel.TOKEN:
        return mean_over(weights, mask)
    share = torch.where(mask, 1 / sequences.spread(sequences.sums(mask)[0].clamp(min=1)), 0.0)
    return Ratio((weights.double() * share).sum(), share.sum())


def _weights(
    log_ratio: Tensor, mask: Tensor, sequences: Sequences, config: CorrectionConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights after and before the bounds, and which ratios hit the bound of the exponent; all 0 outside the mask."""
    if config.mode is WeightMode.NONE:
        ones = select(torch.ones_like(log_ratio), mask)
        return ones, ones, torch.zeros_like(mask)
    raw, clamped = bounded_exp(_at_level(log_ratio, mask, sequences, config.level))
    raw = select(raw, mask)
    if config.mode is WeightMode.TRUNCATE:
        return raw.clamp(max=config.high), raw, clamped & mask
    if config.mode is WeightMode.CLIP:
        return select(raw.clamp(config.low, config.high), mask), raw, clamped & mask
    return select(raw, (raw >= config.low) & (raw <= config.high)), raw, clamped & mask


def _rejected(log_ratio: Tensor, mask: Tensor, sequences: Sequences, config: CorrectionConfig) -> Tensor:
    rejected = torch.zeros_like(mask)
    if config.rejection is not None:
        bounds = config.rejection
        # Compared as logarithms: a product over a long sequence has no float32 ratio.
        ratio = _at_level(log_ratio, mask, sequences, bounds.level)
        rejected = (ratio < _log(bounds.low)) | (ratio > _log(bounds.high))
    if config.token_veto is not None:
        vetoed = mask & (log_ratio < math.log(config.token_veto))
        rejected = rejected | sequences.spread(sequences.sums(vetoed)[0] > 0)
    return rejected


def _at_level(log_ratio: Tensor, mask: Tensor, sequences: Sequences, level: RatioLevel) -> Tensor:
    """Log-ratio of each token at a level: its own, or its sequence's sum or mean."""
    if level is RatioLevel.TOKEN:
        return log_ratio
    sums = sequences.sums(log_ratio, mask)
    value = sums[0] if level is RatioLevel.SEQUENCE else sums[0] / sums[1].clamp(min=1)
    return sequences.spread(value).to(log_ratio.dtype)


def _log(bound: float) -> float:
    return math.log(bound) if bound > 0 else -math.inf


def _require_bounds(name: str, low: float, high: float) -> None:
    require_numbers(low=low, high=high)
    if not 0 <= low <= 1 <= high:
        raise ConfigError(
            f"bounds of the {name}: expected 0 <= low <= 1 <= high, ratios train/rollout, got {low} and {high}."
        )
