"""Advantages from one reward per response, compared within the group of responses to the same prompt.

A rejected response (``valid`` False) gets advantage 0 and stays out of its group's baseline. A group with a single
valid response, or with equal rewards, tells nothing: advantage 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from logparity.errors import ConfigError, InputError, NonFiniteError
from logparity.losses.base import Metrics, Ratio
from logparity.losses.select import as_mask
from logparity.losses.settings import require_numbers


def grpo_advantages(
    rewards: Tensor | Sequence[float],
    groups: Sequence[Hashable] | Tensor,
    *,
    normalize_std: bool = True,
    valid: Tensor | None = None,
    epsilon: float = 1e-6,
) -> Tensor:
    """Group-relative advantages, ``(r - mean) / (std + epsilon)``, or ``r - mean`` (Dr. GRPO).

    Args:
        rewards: ``[S]``, one per response.
        groups: ``S`` prompt keys; responses with equal keys are compared.
        normalize_std: divide by the group's standard deviation (of the sample, ``n - 1``); False is Dr. GRPO.
        valid: bool ``[S]``; False leaves a response out of its baseline, and its advantage is 0. None keeps all.
        epsilon: added to the standard deviation; >= 0.

    Returns:
        ``[S]``, float32 or float64 as the rewards; computed in float64.

    Raises:
        ConfigError: epsilon is negative or not finite.
        InputError: lengths differ, or a mask entry is not 0/1.
        NonFiniteError: a valid response's reward is not finite; names it.

    Source: GRPO, arXiv:2402.03300, section 4.1.2; Dr. GRPO, arXiv:2503.20783.
    """
    require_numbers(epsilon=epsilon)
    if not 0 <= epsilon < float("inf"):
        raise ConfigError(f"epsilon: expected a finite number >= 0, added to a standard deviation, got {epsilon}.")
    table = _Groups.of(rewards, groups, valid)
    centred = table.centred()
    if normalize_std:
        variance = table.sums(centred.square()) / (table.sizes - 1).clamp(min=1)
        centred = centred / (variance.sqrt()[table.ids] + epsilon).clamp(min=torch.finfo(torch.float64).tiny)
    return table.finish(centred)


def rloo_advantages(
    rewards: Tensor | Sequence[float], groups: Sequence[Hashable] | Tensor, *, valid: Tensor | None = None
) -> Tensor:
    """Leave-one-out advantages: reward less the mean reward of the group's other responses.

    Args:
        rewards: ``[S]``, one per response.
        groups: ``S`` prompt keys.
        valid: bool ``[S]``; see `grpo_advantages`.

    Returns:
        ``[S]``.

    Raises:
        InputError: lengths differ, or a mask entry is not 0/1.
        NonFiniteError: a valid response's reward is not finite; names it.

    Source: arXiv:2402.14740.
    """
    table = _Groups.of(rewards, groups, valid)
    factor = table.sizes / (table.sizes - 1).clamp(min=1)
    return table.finish(table.centred() * factor[table.ids])


def group_metrics(
    rewards: Tensor | Sequence[float], groups: Sequence[Hashable] | Tensor, *, valid: Tensor | None = None
) -> Metrics:
    """What the groups can teach: mean reward, and the shares of rejected responses and of groups that teach nothing.

    Args:
        rewards: ``[S]``, one per response.
        groups: ``S`` prompt keys.
        valid: bool ``[S]``; see `grpo_advantages`.

    Returns:
        ``reward``, ``reward/rejected_fraction``, ``reward/single_group_fraction`` (one valid response), and
        ``reward/equal_group_fraction`` (several with equal rewards); mergeable.
    """
    table = _Groups.of(rewards, groups, valid)
    spread = table.sums(table.centred().abs())
    filled = table.sizes > 0
    return {
        "reward": Ratio(table.rewards.sum(), table.valid.sum()),
        "reward/rejected_fraction": Ratio((~table.valid).sum(), table.valid.numel()),
        "reward/single_group_fraction": Ratio((table.sizes == 1).sum(), filled.sum()),
        "reward/equal_group_fraction": Ratio(((table.sizes > 1) & (spread == 0)).sum(), filled.sum()),
    }


class _Groups:
    """Rewards in float64 (0 where rejected) and the group each belongs to."""

    def __init__(self, rewards: Tensor, ids: Tensor, valid: Tensor, dtype: torch.dtype) -> None:
        self.rewards, self.ids, self.valid, self._dtype = rewards, ids, valid, dtype
        self._count = int(ids.max()) + 1 if ids.numel() else 0
        self._first = _first_valid(ids.tolist(), valid.tolist(), self._count)
        self.sizes = self.sums(valid.double())

    @classmethod
    def of(
        cls, rewards: Tensor | Sequence[float], groups: Sequence[Hashable] | Tensor, valid: Tensor | None
    ) -> _Groups:
        values = torch.as_tensor(rewards).detach()
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        if values.ndim != 1:
            raise InputError(f"rewards: expected one per response, a 1-D tensor, got shape {tuple(values.shape)}.")
        keys = groups.tolist() if isinstance(groups, Tensor) else list(groups)
        kept = torch.ones_like(values, dtype=torch.bool) if valid is None else as_mask(valid, "valid")
        for name, length in (("groups", len(keys)), ("valid", kept.numel())):
            if length != values.numel():
                raise InputError(f"{name}: expected {values.numel()} entries, one per reward, got {length}.")
        _require_finite(values, kept, keys)
        numbers: dict[Hashable, int] = {}
        ids = torch.tensor(
            [numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.int64, device=values.device
        )
        return cls(torch.where(kept, values.double(), 0.0), ids, kept, dtype)

    def sums(self, values: Tensor) -> Tensor:
        """Sum within each group."""
        return values.new_zeros(self._count).index_add_(0, self.ids, values)

    def centred(self) -> Tensor:
        """Reward less the mean of its group; exactly 0 where rejected and where the group's rewards are equal."""
        # Differences from one reward of the group first: the mean of equal numbers may be off by a rounding.
        above = torch.where(self.valid, self.rewards - self.rewards[self._first][self.ids], 0.0)
        mean = self.sums(above) / self.sizes.clamp(min=1)
        return torch.where(self.valid, above - mean[self.ids], 0.0)

    def finish(self, advantages: Tensor) -> Tensor:
        """Back to the rewards' precision; 0 where rejected."""
        return torch.where(self.valid, advantages, 0.0).to(self._dtype)


def _first_valid(ids: list[int], valid: list[bool], count: int) -> list[int]:
    first = [0] * count
    for index in reversed(range(len(ids))):
        if valid[index]:
            first[ids[index]] = index
    return first


def _require_finite(rewards: Tensor, valid: Tensor, keys: list[Hashable]) -> None:
    bad = valid & ~rewards.isfinite()
    if bool(bad.any()):
        index = int(bad.nonzero()[0, 0])
        raise NonFiniteError(
            f"reward of response {index}, group {keys[index]!r}: expected a finite number, got {rewards[index].item()} "
            f"({int(bad.sum())} such in all). Mark it invalid to leave it out of its group's baseline."
        )
