"""Returns and generalised advantages along a response, over the tokens the policy generated.

Tool output and padding are passed over as if they were not there: the token before a tool call is followed by the
first token after it. Tokens of a sequence come in order; sequences may lie in any order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.errors import ConfigError
from logparity.losses.select import as_mask, require_finite, require_same_length, select
from logparity.losses.sequences import require_ids_below, require_integer_ids
from logparity.losses.settings import require_numbers


def token_rewards(
    rewards: Tensor, mask: Tensor, sequence_ids: Tensor, *, kl: Tensor | None = None, coefficient: float = 0.0
) -> Tensor:
    """Put each sequence's reward on its last active token, less a KL penalty on every active token.

    Args:
        rewards: ``[S]``, one per sequence; that of a sequence without active tokens has nowhere to go and is left out.
        mask: bool ``[N]``.
        sequence_ids: int64 ``[N]``.
        kl: ``[N]``, nats, an estimate of the KL per token, e.g. from `estimate_kl`; None for no penalty.
        coefficient: factor of the penalty.

    Returns:
        float64 ``[N]``, 0 outside the mask.

    Raises:
        InputError: lengths differ, the mask is not 0/1, or a sequence has no reward.
        NonFiniteError: a reward that has a token to go to, or the KL of an active token, is not finite; names it.
    """
    mask = as_mask(mask)
    require_same_length(mask=mask, sequence_ids=sequence_ids, kl=kl)
    require_same_length(rewards=rewards)
    require_integer_ids(sequence_ids)
    require_ids_below(sequence_ids, rewards.numel())
    active = mask.nonzero()[:, 0]
    ordered, order = torch.sort(sequence_ids[active], stable=True)
    present, lengths = torch.unique_consecutive(ordered, return_counts=True)
    placed = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    last = active[order[lengths.cumsum(0) - 1]]
    placed[last] = rewards.detach().double()[present]
    require_finite(placed, mask, "rewards", sequence_ids)
    if kl is not None:
        require_finite(kl, mask, "kl", sequence_ids)
    return placed if kl is None else placed - coefficient * select(kl.detach().double(), mask)


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    sequence_ids: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the returns a value head learns from.

    ``A_t = sum_k (gamma * lam)^k * (r_{t+k} + gamma * v_{t+k+1} - v_{t+k})`` over active tokens, ``returns = A + v``;
    the value after the last token is 0. Not whitened; see `whiten`.

    Args:
        rewards: ``[N]`` per token, e.g. from `token_rewards`.
        values: ``[N]``.
        mask: bool ``[N]``; other tokens may hold anything.
        sequence_ids: int64 ``[N]``.
        gamma: discount, in [0, 1].
        lam: trade of bias against variance, in [0, 1].

    Returns:
        Advantages and returns, ``[N]`` in the dtype of the values, 0 outside the mask; computed in float64.

    Raises:
        ConfigError: ``gamma`` or ``lam`` is outside [0, 1].
        InputError: lengths differ or the mask is not 0/1.
        NonFiniteError: a reward or value of an active token is not finite; names sequence and position.

    Memory: two float64 ``[sequences, longest sequence]``, log2(longest) passes.

    Source: arXiv:1506.02438, eq. 16.
    """
    _require_fraction(gamma=gamma, lam=lam)
    mask = as_mask(mask)
    require_same_length(rewards=rewards, values=values, mask=mask, sequence_ids=sequence_ids)
    require_integer_ids(sequence_ids)
    require_finite(rewards, mask, "rewards", sequence_ids)
    require_finite(values, mask, "values", sequence_ids)
    rows, columns = _compact(mask, sequence_ids)
    grid = _to_grid(values, mask, rows, columns)
    following = torch.nn.functional.pad(grid[:, 1:], (0, 1))
    delta = _to_grid(rewards, mask, rows, columns) + gamma * following - grid
    advantages = _from_grid(_discounted_sums(delta, gamma * lam), mask, rows, columns)
    returns = advantages + select(values.detach().double(), mask)
    dtype = values.dtype if values.dtype == torch.float64 else torch.float32
    return advantages.to(dtype), returns.to(dtype)


def discounted_returns(rewards: Tensor, mask: Tensor, sequence_ids: Tensor, *, gamma: float = 1.0) -> Tensor:
    """``G_t = sum_k gamma^k * r_{t+k}`` over the active tokens of each sequence.

    Args:
        rewards: ``[N]`` per token.
        mask: bool ``[N]``; other tokens may hold anything.
        sequence_ids: int64 ``[N]``.
        gamma: discount, in [0, 1].

    Returns:
        float64 ``[N]``, 0 outside the mask.

    Raises:
        ConfigError: ``gamma`` is outside [0, 1].
        InputError: lengths differ or the mask is not 0/1.
        NonFiniteError: a reward of an active token is not finite; names sequence and position.
    """
    _require_fraction(gamma=gamma)
    mask = as_mask(mask)
    require_same_length(rewards=rewards, mask=mask, sequence_ids=sequence_ids)
    require_integer_ids(sequence_ids)
    require_finite(rewards, mask, "rewards", sequence_ids)
    rows, columns = _compact(mask, sequence_ids)
    return _from_grid(_discounted_sums(_to_grid(rewards, mask, rows, columns), gamma), mask, rows, columns)


def _compact(mask: Tensor, sequence_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each active token in a grid of one row per sequence without gaps."""
    ids = sequence_ids[mask]
    ordered, order = torch.sort(ids, stable=True)
    present, lengths = torch.unique_consecutive(ordered, return_counts=True)
    starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    columns = torch.empty_like(ids)
    columns[order] = torch.arange(ids.numel(), device=ids.device) - starts
    return torch.searchsorted(present, ids), columns


def _to_grid(values: Tensor, mask: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    shape = (int(rows.max()) + 1, int(columns.max()) + 1) if rows.numel() else (0, 1)
    grid = torch.zeros(shape, dtype=torch.float64, device=values.device)
    grid[rows, columns] = values.detach()[mask].double()
    return grid


def _from_grid(grid: Tensor, mask: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    flat = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    flat[mask] = grid[rows, columns]
    return flat


def _discounted_sums(grid: Tensor, factor: float) -> Tensor:
    """``y_t = sum_k factor^k * x_{t+k}`` along rows, by doubling the window: no loop over tokens."""
    sums, window = grid, 1
    while window < grid.shape[1] and factor != 0:
        sums = sums + factor**window * torch.nn.functional.pad(sums[:, window:], (0, window))
        window *= 2
    return sums


def _require_fraction(**values: float) -> None:
    require_numbers(**values)
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}: expected a number in [0, 1], got {value}.")
