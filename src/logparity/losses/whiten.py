"""Whitening of advantages over all active tokens of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.errors import ConfigError, InputError
from logparity.losses.base import SequenceSum
from logparity.losses.select import as_mask, require_finite, require_same_length, select
from logparity.losses.settings import require_numbers


def whiten(
    values: Tensor, mask: Tensor, *, across: SequenceSum | None = None, epsilon: float = 1e-8, shift_mean: bool = True
) -> Tensor:
    """Shift to mean 0 and scale to variance 1: ``(x - mean) / sqrt(var + epsilon)``.

    Args:
        values: ``[N]``.
        mask: bool ``[N]``; other tokens may hold anything and come back as 0.
        across: adds numbers over the ranks that hold the rest of the step; None where this is all of it.
        epsilon: added to the variance (of the sample, ``n - 1``).
        shift_mean: False scales only, leaving the mean.

    Returns:
        ``[N]`` in the dtype of the values; computed in float64.

    Raises:
        ConfigError: epsilon is negative or not finite.
        InputError: fewer than two active tokens in all, where no variance exists.
        NonFiniteError: an active value is not finite, here or on another rank; names it.

    Memory: a few float64 ``[N]``.
    """
    mask = as_mask(mask)
    require_same_length(values=values, mask=mask)
    require_numbers(epsilon=epsilon)
    if not 0 <= epsilon < float("inf"):
        raise ConfigError(f"epsilon of the whitening: expected a finite number >= 0, got {epsilon}.")
    require_finite(values, mask, "values to whiten", across=across)
    chosen = select(values.detach().double(), mask)
    count, total = _everywhere(torch.stack([mask.sum().double(), chosen.sum()]), across)
    if count < 2:
        raise InputError(
            f"mask: expected at least 2 active tokens to whiten over, got {int(count)}. A mean and variance of nothing "
            "would be made up; leave such a step out."
        )
    mean = total / count
    centred = select(chosen - mean, mask)
    (squares,) = _everywhere(centred.square().sum().reshape(1), across)
    scaled = centred / (squares / (count - 1) + epsilon).sqrt()
    return select(scaled if shift_mean else scaled + mean, mask).to(values.dtype)


def _everywhere(numbers: Tensor, across: SequenceSum | None) -> Tensor:
    return numbers if across is None else across(numbers.reshape(-1, 1)).reshape(-1)
