"""Which columns of the vocabulary a rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from logparity.parallel.vocab import VocabShard


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary padded for its shards.

    Args:
        shard: this rank's columns; None where it holds all.
        size: columns that count.
        padded: columns over all ranks.
    """

    shard: VocabShard | None
    size: int
    padded: int


__all__ = ["Vocabulary"]
