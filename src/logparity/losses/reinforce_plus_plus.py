"""Advantages of REINFORCE++: no value head, whitened over the whole step rather than within a group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from logparity.losses.advantage import grpo_advantages
from logparity.losses.base import SequenceSum
from logparity.losses.returns import discounted_returns
from logparity.losses.select import as_mask, require_finite, require_same_length
from logparity.losses.sequences import require_ids_below, require_integer_ids
from logparity.losses.whiten import whiten


def reinforce_plus_plus_advantages(
    rewards: Tensor, mask: Tensor, sequence_ids: Tensor, *, gamma: float = 1.0, across: SequenceSum | None = None
) -> Tensor:
    """Discounted returns, whitened over all active tokens of the step.

    Args:
        rewards: ``[N]`` per token, with the KL penalty in it; see `token_rewards`.
        mask: bool ``[N]``; other tokens may hold anything.
        sequence_ids: int64 ``[N]``.
        gamma: discount, in [0, 1].
        across: adds numbers over the ranks that hold the rest of the step.

    Returns:
        float64 ``[N]``, 0 outside the mask.

    Raises:
        InputError: fewer than two active tokens in all.
        NonFiniteError: a reward of an active token is not finite, here or on another rank; names it.

    Source: arXiv:2501.03262, section 3.
    """
    mask = as_mask(mask)
    require_same_length(rewards=rewards, mask=mask, sequence_ids=sequence_ids)
    # First over all ranks: a rank that raised alone would leave the others waiting in the whitening.
    require_finite(rewards, mask, "rewards", sequence_ids, across=across)
    return whiten(discounted_returns(rewards, mask, sequence_ids, gamma=gamma), mask, across=across)


def reinforce_plus_plus_baseline_advantages(
    rewards: Tensor,
    groups: Sequence[Hashable] | Tensor,
    mask: Tensor,
    sequence_ids: Tensor,
    *,
    valid: Tensor | None = None,
    across: SequenceSum | None = None,
) -> Tensor:
    """Reward less its group's mean, on every active token, whitened over all active tokens of the step.

    Args:
        rewards: ``[S]``, one per response.
        groups: ``S`` prompt keys, whole on this rank.
        mask: bool ``[N]``.
        sequence_ids: int64 ``[N]`` in ``[0, S)``.
        valid: bool ``[S]``; a rejected response has advantage 0 and enters neither its group's mean nor the whitening.
        across: adds numbers over the ranks that hold the rest of the step.

    Returns:
        float64 ``[N]``, 0 outside the mask and on rejected responses.

    Raises:
        InputError: lengths differ, an id is out of range, or fewer than two active tokens in all.
        NonFiniteError: a valid response's reward is not finite, here or on another rank; names it.

    Source: arXiv:2501.03262, "REINFORCE++ with baseline".
    """
    mask = as_mask(mask)
    require_same_length(mask=mask, sequence_ids=sequence_ids)
    require_same_length(rewards=rewards, valid=valid)
    require_integer_ids(sequence_ids)
    require_ids_below(sequence_ids, rewards.numel())
    kept = torch.ones_like(rewards, dtype=torch.bool) if valid is None else as_mask(valid, "valid")
    require_finite(rewards, kept, "rewards of valid responses", across=across)
    centred = grpo_advantages(rewards.double(), groups, normalize_std=False, valid=kept)
    return whiten(centred[sequence_ids], mask & kept[sequence_ids], across=across)
