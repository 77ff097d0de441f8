"""Cutting a batch into micro-batches by tokens, sequences of similar length together."""

from __future__ import annotations

from logparity.errors import InputError
from logparity.records import TokenBatch


def micro_batches(batch: TokenBatch, max_tokens: int) -> list[list[int]]:
    """Group sequences so that a padded micro-batch holds at most ``max_tokens`` tokens.

    Sequences are taken from the longest to the shortest, ties in their own order; a micro-batch of ``n`` sequences
    whose longest has ``l`` tokens costs ``n * l``, padding included.

    Args:
        batch: the sequences.
        max_tokens: budget; >= 1, never exceeded.

    Returns:
        Indices into the batch, each exactly once.

    Raises:
        InputError: the budget is below 1, or a sequence alone exceeds it.
    """
    if max_tokens < 1:
        raise InputError(f"micro_batch_tokens: expected >= 1, got {max_tokens}.")
    lengths = [len(p) + len(r) for p, r in zip(batch.prompt_ids, batch.response_ids, strict=True)]
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] > max_tokens:
            raise InputError(
                f"sequence {batch.keys[i]!r} has {lengths[i]} tokens (prompt and response), and a micro-batch may hold "
                f"{max_tokens}. Set micro_batch_tokens to at least {lengths[i]}, or shorten the sequence."
            )
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


__all__ = ["micro_batches"]
