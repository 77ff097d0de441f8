"""Vocabulary shards: a small value that says which columns this rank holds, and who holds the others."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from logparity.errors import ShardError
from logparity.parallel.groups import gather_flat, group_rank, group_size, resolve_group

Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class VocabShard:
    """Columns ``[start, stop)`` of the global vocabulary, held by this rank of a tensor-parallel group.

    The shards of a group's ranks must follow each other in rank order and cover the vocabulary from 0 on; they may be
    of any size. Their bounds are exchanged once, when a group is first used with these bounds, and checked then.
    Where a group serves two vocabularies, every rank's bounds must differ between them (or use two groups).

    Args:
        start: first global column, >= 0.
        stop: one past the last global column, > start.
        group: the ranks that hold the other columns; None for the default group where one is initialised, else a
            single process.

    Raises:
        ShardError: the bounds are not integers with ``0 <= start < stop``, or the group is no process group.
    """

    start: int
    stop: int
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        bounds: tuple[tuple[str, object], ...] = (("start", self.start), ("stop", self.stop))
        for name, value in bounds:
            if not isinstance(value, Integral):
                raise ShardError(f"VocabShard: expected {name} to be an integer column, got {value!r}. Pass an int.")
        if self.group is not None and not isinstance(self.group, dist.ProcessGroup):
            raise ShardError(
                f"VocabShard: expected group to be a torch.distributed.ProcessGroup this rank belongs to, or None, got "
                f"{self.group!r}. Pass what dist.new_group or DeviceMesh.get_group returned."
            )
        if not 0 <= self.start < self.stop:
            raise ShardError(
                f"VocabShard: expected 0 <= start < stop, got start={self.start}, stop={self.stop}. "
                "Pass the first global column and one past the last."
            )


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The shards of all ranks of a group: contiguous, in rank order, from column 0.

    Args:
        bounds: ``(start, stop)`` of every rank.
        rank: this rank.
        group: the resolved group; None for a single process, which then holds every column.
    """

    bounds: tuple[Bounds, ...]
    rank: int = 0
    group: dist.ProcessGroup | None = None

    @classmethod
    def whole(cls, columns: int) -> ShardLayout:
        """The layout of a single process that holds every column."""
        return cls(bounds=((0, columns),))

    @property
    def own(self) -> Bounds:
        """``(start, stop)`` of this rank."""
        return self.bounds[self.rank]

    @property
    def columns(self) -> int:
        """Number of columns over all shards."""
        return self.bounds[-1][1]

    @property
    def alone(self) -> bool:
        """Whether a call needs no collective."""
        return len(self.bounds) == 1


_LAYOUTS: WeakKeyDictionary[dist.ProcessGroup, dict[Bounds, ShardLayout]] = WeakKeyDictionary()
"""Layouts by group and own bounds. A cache, so that bounds cost one collective per group and not one per call."""


def shard_layout(shard: VocabShard, device: torch.device) -> ShardLayout:
    """The layout of a shard's group: exchanged at first use (one collective), cached after.

    Args:
        shard: this rank's columns.
        device: where the group communicates.

    Returns:
        Every rank's bounds, checked.

    Raises:
        ShardError: on every rank, where shards overlap, leave a gap, or do not start at 0.
    """
    group = resolve_group(shard.group)
    own = (shard.start, shard.stop)
    if group is None:
        return _checked((own,), 0, None)
    known = _LAYOUTS.setdefault(group, {})
    if own not in known:
        known[own] = _checked(_exchange(own, group, device), group_rank(group), group)
    return known[own]


def _exchange(own: Bounds, group: dist.ProcessGroup, device: torch.device) -> tuple[Bounds, ...]:
    size = group_size(group)
    gathered = gather_flat(torch.tensor(own, dtype=torch.int64, device=device), group, size)
    return tuple((start, stop) for start, stop in gathered.tolist())


def _checked(bounds: tuple[Bounds, ...], rank: int, group: dist.ProcessGroup | None) -> ShardLayout:
    expected = 0
    for owner, (start, stop) in enumerate(bounds):
        if start != expected:
            kind = "overlap" if start < expected else "leave a gap"
            raise ShardError(
                f"vocabulary shards {kind}: expected the shard of rank {owner} to start at column {expected}, "
                f"got [{start}, {stop}). Shards follow each other in rank order from column 0; all: {list(bounds)}."
            )
        expected = stop
    return ShardLayout(bounds=bounds, rank=rank, group=group)
