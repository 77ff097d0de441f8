"""Turn losses per token into one number: numerators local, denominators global.

Each reduction is a sum over tokens divided by a count over the whole step, so that the losses (and gradients) of
micro-batches and ranks simply add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from logparity.errors import ConfigError, InputError
from logparity.losses.base import Denominators, Ratio, TokenTensors
from logparity.losses.select import as_mask
from logparity.losses.sequences import Sequences
from logparity.losses.settings import as_choice

_ROUNDING = 1e-9
"""Sequences that lie on several ranks are counted in fractions, which round."""


class Reduction(str, Enum):
    """How the losses of tokens become the loss of a step; ``n_s`` active tokens in sequence ``s``."""

    TOKEN_MEAN = "token_mean"
    """``sum_t l_t / tokens``: every token weighs the same (DAPO, arXiv:2503.14476, eq. 8)."""
    SEQUENCE_MEAN_TOKEN_MEAN = "sequence_mean_token_mean"
    """``sum_s (sum_t l_t / n_s) / sequences``: every sequence weighs the same (GRPO, arXiv:2402.03300, eq. 3)."""
    SEQUENCE_MEAN_TOKEN_SUM = "sequence_mean_token_sum"
    """``sum_t l_t / sequences``: the policy gradient of a mean over sequences."""
    FIXED_LENGTH = "fixed_length"
    """``sum_t l_t / (sequences * length)``: no length bias (Dr. GRPO, arXiv:2503.20783)."""


@dataclass(frozen=True, slots=True)
class ReductionConfig:
    """A reduction and, for `Reduction.FIXED_LENGTH`, its length.

    Args:
        kind: which reduction.
        length: tokens each sequence is divided by, e.g. the longest response allowed; only with ``FIXED_LENGTH``.

    Raises:
        ConfigError: there is no such reduction, or the length is missing, not positive, or given where it is not read.
    """

    kind: Reduction = Reduction.TOKEN_MEAN
    length: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", as_choice(Reduction, self.kind, "reduction"))
        if self.length is not None and (isinstance(self.length, bool) or not isinstance(self.length, int)):
            raise ConfigError(f"length: expected an integer >= 1, got {self.length!r}.")
        if self.kind is Reduction.FIXED_LENGTH and (self.length is None or self.length < 1):
            raise ConfigError(f"length: expected an integer >= 1 for {self.kind.value}, got {self.length}.")
        if self.kind is not Reduction.FIXED_LENGTH and self.length is not None:
            raise ConfigError(
                f"length: expected none for {self.kind.value}, where it has no effect, got {self.length}."
            )


def reduce_tokens(
    losses: Tensor, mask: Tensor, sequences: Sequences, denominators: Denominators, config: ReductionConfig
) -> tuple[Tensor, Ratio]:
    """Reduce per-token losses to this micro-batch's share of the step's loss.

    Args:
        losses: ``[N]``, nats, 0 on tokens that do not count.
        mask: bool ``[N]``: the tokens that were counted for the denominators, rejected ones included.
        sequences: which sequence each token belongs to.
        denominators: counts over the whole step.
        config: which reduction.

    Returns:
        The share of the loss, a scalar in the dtype of ``losses`` with gradient (0 with a gradient link where nothing
        is active), and the same as a detached `Ratio` whose parts merge to the loss of the step. Sums in float64.

    Raises:
        InputError: this micro-batch alone holds more than the denominators say the step does. On the CPU only; on
            another device, where looking would wait, the loss is NaN.
    """
    if config.kind is Reduction.TOKEN_MEAN:
        total, count = losses.sum(dtype=torch.float64), mask.sum().double()
        return _finish(total, "tokens", denominators.tokens, count, 1, losses.dtype)
    share = _sequence_share(mask, sequences)
    weighted = losses.double() * share if config.kind is Reduction.SEQUENCE_MEAN_TOKEN_MEAN else losses.double()
    length = config.length or 1
    return _finish(weighted.sum(), "sequences", denominators.sequences, share.sum(), length, losses.dtype)


def count_denominators(micro_batches: Iterable[TokenTensors]) -> Denominators:
    """Count a step's active tokens and sequences over micro-batches whose sequences are whole.

    Args:
        micro_batches: all of the step, of all ranks.

    Returns:
        The denominators of the step.
    """
    tokens = sequences = 0
    for part in micro_batches:
        mask = as_mask(part.mask)
        tokens += int(mask.sum())
        sequences += int(torch.unique(part.sequence_ids[mask]).numel())
    return Denominators(tokens, sequences)


def _sequence_share(mask: Tensor, sequences: Sequences) -> Tensor:
    """``1 / n_s`` on active tokens: sums to the number of sequences, also where a sequence lies on several ranks."""
    lengths = sequences.sums(mask)[0].clamp(min=1)
    return torch.where(mask, 1 / sequences.spread(lengths), 0.0)


def _finish(
    total: Tensor, name: str, whole: int, here: Tensor, length: int, dtype: torch.dtype
) -> tuple[Tensor, Ratio]:
    """``total / (whole * length)``, where ``here`` of the step's ``whole`` tokens or sequences are in this part."""
    too_many = here > whole * (1 + _ROUNDING)
    if here.device.type != "cpu":
        total = torch.where(too_many, torch.nan, total)
    elif bool(too_many):
        raise InputError(
            f"denominators: expected at least {math.ceil(float(here) * (1 - _ROUNDING))} {name}, as many as are active "
            f"in this micro-batch, got {whole}. Count them over the whole step, all micro-batches and ranks; see "
            "count_denominators."
        )
    loss = total / max(whole * length, 1)
    return loss.to(dtype), Ratio(total.detach(), here * length)
