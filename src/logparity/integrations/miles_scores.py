"""Scores over equal vocabulary shards, as Megatron's tensor parallelism lays them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logparity.ops import token_log_probs
from logparity.parallel.groups import group_rank, group_size
from logparity.parallel.vocab import VocabShard


def shard_scores(
    logits: Tensor,
    tokens: Tensor,
    group: Any,
    *,
    entropy: str = "none",
    valid_vocab_size: int | None = None,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Score tokens from this rank's columns.

    Args:
        logits: ``[R, V_local]``.
        tokens: int64 ``[R]``, global ids.
        group: ranks that hold the other columns; None for one process.
        entropy: ``none``, ``value``, or ``grad``; of the full vocabulary, whatever ``keep`` says.
        valid_vocab_size: columns from here on are padding.
        keep: bool ``[R, V_local]``; log-probs are renormalised over True columns.

    Returns:
        Log-probs ``[R]`` and entropy ``[R]`` or None, nats.
    """
    shard = None
    if group is not None and group_size(group) > 1:
        start = group_rank(group) * logits.shape[-1]
        shard = VocabShard(start, start + logits.shape[-1], group)

    def score(of: Tensor, mode: str) -> Any:
        return token_log_probs(of, tokens, shard=shard, valid_vocab_size=valid_vocab_size, entropy=mode)

    if keep is None:
        result = score(logits, entropy)
        return result.log_probs, result.entropy
    log_probs = score(logits.masked_fill(~keep, -torch.inf), "none").log_probs
    return log_probs, None if entropy == "none" else score(logits, entropy).entropy


__all__ = ["shard_scores"]
