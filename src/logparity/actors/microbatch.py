"""Cutting a batch into micro-batches by tokens, sequences of similar length together."""

from __future__ import annotations

from collections.abc import Sequence

from logparity.errors import InputError


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sequences so that a padded micro-batch holds at most ``max_tokens`` tokens.

    Sequences are taken from the longest to the shortest, ties in their own order; a micro-batch of ``n`` sequences
    whose longest has ``l`` tokens costs ``n * l``, padding included. A sequence longer than the budget gets a
    micro-batch of its own.

    Args:
        lengths: tokens of each sequence.
        max_tokens: budget; >= 1.

    Returns:
        Indices into ``lengths``, each exactly once.

    Raises:
        InputError: the budget is below 1.
    """
    if max_tokens < 1:
        raise InputError(f"micro_batch_tokens: expected >= 1, got {max_tokens}.")
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


__all__ = ["micro_batches"]
