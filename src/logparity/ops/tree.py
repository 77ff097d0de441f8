"""One fixed binary tree over the vocabulary's blocks.

Merging statistics along it gives the same bits however the blocks are spread over ranks.

A set of columns is summarised by its `Stats`. With ``rate = 1 / temperature``::

    max      = max_j x_j
    sum      = sum_j exp(rate * (x_j - max))
    weighted = sum_j exp(rate * (x_j - max)) * rate * (x_j - max)          (for the entropy)

and two disjoint sets merge by moving both to the larger maximum. Floating-point merging is not associative; hence the
fixed order: node ``(level, i)`` is the merge of nodes ``(level - 1, 2i)`` and ``(level - 1, 2i + 1)``; a last node
without a sibling is passed on as it is. A rank reduces its columns to the few nodes it owns whole, and whoever holds
all ranks' nodes merges them on along the same tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1024
"""Columns of a block, by global index. Part of the numbers: changing it changes results in the last bit."""

FLOOR = -16384.0
"""Exponent that stands for minus infinity: its exponential is 0 in float64, and 0 * FLOOR is 0, not NaN."""

Rate = float | Tensor
"""``1 / temperature``: one number, or one per row."""


class Stats(NamedTuple):
    """Statistics of sets of columns, float64 ``[rows, sets]``.

    Args:
        max: largest logit; -inf for a set that is empty or wholly -inf.
        sum: sum of exponentials relative to ``max``; 0 for such a set.
        weighted: sum of exponentials times their exponents; None where no entropy is wanted.
    """

    max: Tensor
    sum: Tensor
    weighted: Tensor | None = None

    def sets(self, index: slice) -> Stats:
        """The statistics of some of the sets."""
        weighted = None if self.weighted is None else self.weighted[:, index]
        return Stats(self.max[:, index], self.sum[:, index], weighted)


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """A node of the tree: blocks ``[index * 2^level, (index + 1) * 2^level)`` as far as they exist."""

    level: int
    index: int


def block_count(columns: int) -> int:
    """Number of blocks that ``columns`` columns fall on."""
    return -(-columns // BLOCK)


def merge(left: Stats, right: Stats, rate: Rate) -> Stats:
    """Statistics of the union of disjoint sets, elementwise; NaN and +inf carry through as NaN sums."""
    top = torch.maximum(left.max, right.max)
    # A finite reference keeps -inf - (-inf) from becoming NaN where both sides are empty.
    reference = top.clamp(min=torch.finfo(top.dtype).min)
    left_shift, right_shift = (_shift(side.max, reference, rate) for side in (left, right))
    left_weight, right_weight = left_shift.exp(), right_shift.exp()
    total = left_weight * left.sum + right_weight * right.sum
    if left.weighted is None or right.weighted is None:
        return Stats(top, total)
    weighted = left_weight * (left.weighted + left_shift * left.sum) + right_weight * (
        right.weighted + right_shift * right.sum
    )
    return Stats(top, total, weighted)


def _shift(maximum: Tensor, reference: Tensor, rate: Rate) -> Tensor:
    return ((maximum - reference) * rate).clamp_(min=FLOOR)


def owned_nodes(start: int, stop: int, columns: int) -> tuple[Node, ...]:
    """The nodes that the owner of columns ``[start, stop)`` reduces them to, in the order of `reduce_blocks`.

    Args:
        start: first global column owned.
        stop: one past the last; at most ``columns``.
        columns: columns of the whole vocabulary.

    Returns:
        Maximal nodes owned whole; a block shared with another owner stands for itself at level 0.
    """
    nodes: list[Node] = []
    for step in _steps(start, stop, columns):
        nodes += [Node(step.level, step.low)] * step.emit_first
        nodes += [Node(step.level, step.high - 1)] * step.emit_last
    return tuple(nodes)


def reduce_blocks(blocks: Stats, start: int, stop: int, columns: int, rate: Rate) -> Stats:
    """Merge the statistics of an owner's blocks to those of its `owned_nodes`.

    Args:
        blocks: float64 ``[rows, blocks]``: every block that ``[start, stop)`` touches, over its owned columns.
        start: first global column owned.
        stop: one past the last; at most ``columns``.
        columns: columns of the whole vocabulary.
        rate: a float, or float64 ``[rows, 1]``.

    Returns:
        ``[rows, nodes]`` in the order of `owned_nodes`.
    """
    emitted: list[Stats] = []
    for step in _steps(start, stop, columns):
        if step.emit_first:
            emitted.append(blocks.sets(slice(0, 1)))
            blocks = blocks.sets(slice(1, None))
        if step.emit_last:
            emitted.append(blocks.sets(slice(-1, None)))
            blocks = blocks.sets(slice(0, -1))
        if step.climb and blocks.max.shape[1]:
            blocks = _climb(blocks, rate)
    return concatenate(emitted) if emitted else blocks.sets(slice(0, 0))


def _climb(blocks: Stats, rate: Rate) -> Stats:
    pairs = blocks.max.shape[1] // 2 * 2
    merged = merge(blocks.sets(slice(0, pairs, 2)), blocks.sets(slice(1, pairs, 2)), rate)
    return concatenate([merged, blocks.sets(slice(pairs, None))])


def concatenate(parts: Sequence[Stats]) -> Stats:
    """Sets of several `Stats` next to each other."""
    if len(parts) == 1:
        return parts[0]
    weighted = [part.weighted for part in parts if part.weighted is not None]
    return Stats(
        torch.cat([part.max for part in parts], dim=1),
        torch.cat([part.sum for part in parts], dim=1),
        torch.cat(weighted, dim=1) if len(weighted) == len(parts) else None,
    )


def combine(pieces: Iterable[tuple[Node, Stats]], columns: int, rate: Rate) -> Stats:
    """Merge all owners' nodes to the root.

    Args:
        pieces: nodes of all owners in rank order, each with statistics ``[rows, 1]``; together the whole vocabulary.
        columns: columns of the whole vocabulary.
        rate: a float, or float64 ``[rows, 1]``.

    Returns:
        Statistics of the full vocabulary, ``[rows, 1]``.
    """
    levels: dict[int, dict[int, Stats]] = {}
    for node, stats in pieces:
        row = levels.setdefault(node.level, {})
        # Owners that share a block are merged in rank order before the tree begins.
        row[node.index] = merge(row[node.index], stats, rate) if node.index in row else stats
    level, width = 0, block_count(columns)
    while width > 1:
        row, above = levels.get(level, {}), levels.setdefault(level + 1, {})
        for index in range(0, width, 2):
            if index in row:
                above[index // 2] = merge(row[index], row[index + 1], rate) if index + 1 < width else row[index]
        level, width = level + 1, -(-width // 2)
    return levels[level][0]


@dataclass(frozen=True, slots=True)
class _Step:
    """What happens at one level: nodes ``[low, high)`` are at hand; the outer ones may be handed out as they are."""

    level: int
    low: int
    high: int
    emit_first: bool
    emit_last: bool
    climb: bool


def _steps(start: int, stop: int, columns: int) -> Iterable[_Step]:
    """Walk an owner's nodes up the tree, handing out those whose sibling belongs to somebody else."""
    if stop <= start:
        return
    low, high, width, level = start // BLOCK, block_count(stop), block_count(columns), 0
    # Shared blocks first: they are at level 0 whatever their index.
    first_shared = start % BLOCK != 0
    last_shared = stop % BLOCK != 0 and stop != columns and high - low > first_shared
    yield _Step(0, low, high, first_shared, last_shared, climb=False)
    low, high = low + first_shared, high - last_shared
    while low < high:  # left by the return below, once nothing is at hand
        root = width == 1
        first = root or low % 2 == 1
        last = not root and high % 2 == 1 and high != width
        yield _Step(level, low, high, first, last, climb=not root)
        low, high = low + first, high - last
        if low == high:
            return
        low, high, width, level = low // 2, -(-high // 2), -(-width // 2), level + 1
