"""Sharing a step's sequences out over data-parallel ranks, and cutting each rank's share into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logparity.errors import InputError


@dataclass(frozen=True, slots=True)
class MicroBatchSize:
    """How large a micro-batch may be: exactly one of the two.

    Args:
        tokens: tokens computed together, padding included, over all context-parallel ranks.
        sequences: sequences computed together.

    Raises:
        InputError: none or both are given, or one is below 1.
    """

    tokens: int | None = None
    sequences: int | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.sequences is None):
            raise InputError(
                f"micro-batch size: expected either micro_batch_tokens or micro_batch_sequences, got "
                f"{self.tokens} and {self.sequences}."
            )
        for name, value in (("micro_batch_tokens", self.tokens), ("micro_batch_sequences", self.sequences)):
            if value is not None and value < 1:
                raise InputError(f"{name}: expected an integer >= 1, got {value}.")


def plan_micro_batches(
    lengths: Sequence[int],
    keys: Sequence[str],
    size: MicroBatchSize,
    *,
    ranks: int = 1,
    packed: bool = True,
    multiple: int = 1,
    count_multiple: int = 1,
) -> list[list[list[int]]]:
    """Share sequences out over ranks by tokens, then fill micro-batches first-fit, longest sequence first.

    Every rank gets the same number of micro-batches, since ranks that share experts or pipeline stages wait for each
    other in each of them; where a rank has too few, its fullest are halved, and what is still missing is empty.
    A micro-batch never exceeds its size.

    Args:
        lengths: tokens of each sequence.
        keys: their names, for errors.
        size: how large a micro-batch may be.
        ranks: data-parallel ranks.
        packed: sequences lie one after another; else each is padded to the longest.
        multiple: each sequence is padded to a multiple of this.
        count_multiple: the number of micro-batches is a multiple of this (an interleaved pipeline's stages).

    Returns:
        Per rank, per micro-batch, indices into ``lengths``; each index exactly once.

    Raises:
        InputError: one sequence alone exceeds ``size.tokens``; names it.
    """
    extents = [-(-length // multiple) * multiple for length in lengths]
    for key, length, extent in zip(keys, lengths, extents, strict=True):
        if size.tokens is not None and extent > size.tokens:
            raise InputError(
                f"sequence {key!r}: {length} tokens, {extent} with padding to a multiple of {multiple}, but "
                f"micro_batch_tokens is {size.tokens}. Raise micro_batch_tokens to at least {extent}, or shorten it."
            )
    filled = [_first_fit(share, extents, size, packed) for share in _shares(extents, ranks)]
    count = max(1, *(len(batches) for batches in filled))
    count = -(-count // count_multiple) * count_multiple
    return [_spread(batches, count, extents) for batches in filled]


def _shares(extents: Sequence[int], ranks: int) -> list[list[int]]:
    """Longest first, each to the rank with the fewest tokens."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for i in _longest_first(range(len(extents)), extents):
        rank = min(range(ranks), key=lambda r: (loads[r], len(shares[r]), r))
        shares[rank].append(i)
        loads[rank] += extents[i]
    return shares


def _first_fit(share: list[int], extents: Sequence[int], size: MicroBatchSize, packed: bool) -> list[list[int]]:
    batches: list[list[int]] = []
    for i in share:  # longest first
        place = next((b for b in batches if _fits([*b, i], extents, size, packed)), None)
        if place is None:
            batches.append([i])
        else:
            place.append(i)
    return batches


def _fits(batch: list[int], extents: Sequence[int], size: MicroBatchSize, packed: bool) -> bool:
    if size.sequences is not None:
        return len(batch) <= size.sequences
    tokens = sum(extents[i] for i in batch) if packed else len(batch) * max(extents[i] for i in batch)
    return tokens <= (size.tokens or 0)


def _spread(batches: list[list[int]], count: int, extents: Sequence[int]) -> list[list[int]]:
    batches = [list(batch) for batch in batches]
    while len(batches) < count:
        fullest = max(batches, key=lambda b: (len(b) > 1, sum(extents[i] for i in b)), default=[])
        if len(fullest) < 2:
            batches.append([])
            continue
        batches.append(fullest[1::2])
        fullest[:] = fullest[0::2]
    return [sorted(batch) for batch in batches]


def _longest_first(indices: Sequence[int], extents: Sequence[int]) -> list[int]:
    return sorted(indices, key=lambda i: -extents[i])


__all__ = ["MicroBatchSize", "plan_micro_batches"]
