"""Per-sequence sums of flat token tensors, also where a sequence lies on several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from logparity.errors import InputError
from logparity.losses.base import SequenceSum, TokenTensors, ValueTensors

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Sequences:
    """Which sequence each of ``N`` tokens belongs to.

    Args:
        ids: int64 ``[N]`` in ``[0, count)``.
        count: number of sequences ``S``.
        across: adds over the ranks that share the sequences; None where they are whole here.
    """

    ids: Tensor
    count: int
    across: SequenceSum | None = None

    @classmethod
    def of(cls, tokens: TokenTensors | ValueTensors) -> Sequences:
        """The sequences of a micro-batch."""
        return cls(tokens.sequence_ids, tokens.num_sequences, tokens.sequence_sum)

    def sums(self, *values: Tensor) -> Tensor:
        """Sum ``K`` token tensors within each sequence, over all ranks that share it, without gradient.

        Args:
            *values: ``K`` tensors ``[N]``, 0 on inactive tokens.

        Returns:
            float64 ``[K, S]``. One exchange of that many numbers where sequences are shared.
        """
        stacked = torch.stack([value.detach().double() for value in values])
        local = stacked.new_zeros(len(values), self.count).index_add_(1, self.ids, stacked)
        return local if self.across is None else self.across(local)

    def spread(self, per_sequence: Tensor) -> Tensor:
        """Give each token the number of its sequence: ``[S]`` to ``[N]``."""
        return per_sequence[self.ids]


class GroupSum:
    """Adds per-sequence numbers over a process group with one all-reduce.

    Args:
        group: the ranks that share sequences, e.g. the context-parallel group.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def __call__(self, per_sequence: Tensor) -> Tensor:
        """The sum over the group, on every rank."""
        total = per_sequence.detach().clone()
        dist.all_reduce(total, group=self._group)
        return total


def require_sequence_ids(tokens: TokenTensors | ValueTensors) -> None:
    """Check that sequence ids fit the number of sequences.

    Args:
        tokens: the micro-batch; values are looked at on the CPU only, where that costs no wait.

    Raises:
        InputError: ids are not integers or out of range, or ``keys`` has another length.
    """
    if tokens.keys is not None and len(tokens.keys) != tokens.num_sequences:
        raise InputError(f"keys: expected {tokens.num_sequences} entries, one per sequence, got {len(tokens.keys)}.")
    require_integer_ids(tokens.sequence_ids)
    if tokens.sequence_ids.device.type == "cpu":
        require_ids_below(tokens.sequence_ids, tokens.num_sequences)


def require_integer_ids(ids: Tensor) -> None:
    """Check the dtype of sequence ids: a float would be truncated, and a bool or byte tensor indexes like a mask.

    Args:
        ids: ``[N]``.

    Raises:
        InputError: they are not int64 or int32.
    """
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"sequence_ids: expected int64, got {ids.dtype}. Give the number of each token's sequence.")


def require_ids_below(ids: Tensor, count: int) -> None:
    """Check the range of sequence ids; waits for the device.

    Args:
        ids: int64 ``[N]``.
        count: number of sequences.

    Raises:
        InputError: an id is out of range.
    """
    if ids.numel() == 0:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= count:
        raise InputError(
            f"sequence_ids: expected values in [0, {count}), one for each of {count} sequences, got {low} to {high}. "
            "Number the sequences from 0."
        )
