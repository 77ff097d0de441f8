"""Gather the full vocabulary from its shards, with a backward that needs no collective."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logparity.parallel.collectives import exchange
from logparity.parallel.vocab import ShardLayout


def gather_columns(shard: Tensor, layout: ShardLayout, *, read_failures: bool = True) -> Tensor:
    """All ranks' columns next to each other; backward takes this rank's own slice of the gradient.

    Every rank computes the same loss from the same full rows, so its slice of the gradient is whole already: a
    reduce-scatter would count it once per rank.

    Args:
        shard: ``[N, V_local]``, ``N`` and dtype equal on every rank.
        layout: who holds which columns.
        read_failures: see `logparity.parallel.collectives.exchange`.

    Returns:
        ``[N, V]``; the shard itself for a single process.
    """
    if layout.alone:
        return shard
    gathered: Tensor = _GatherColumns.apply(shard, layout, read_failures)  # type: ignore[no-untyped-call]
    return gathered


def gather_payload(count: int, layout: ShardLayout, like: Tensor) -> Tensor:
    """A payload like those that `gather_columns` exchanges, for a rank that has nothing but a failure to tell."""
    return like.new_zeros(count, _widest(layout))


def _widest(layout: ShardLayout) -> int:
    return max(stop - start for start, stop in layout.bounds)


class _GatherColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, layout: ShardLayout, read_failures: bool) -> Tensor:
        ctx.own = layout.own
        widths = [stop - start for start, stop in layout.bounds]
        padded = torch.nn.functional.pad(shard.detach(), (0, _widest(layout) - shard.shape[1]))
        received = exchange(padded, layout, read_failures=read_failures)
        return torch.cat([part[:, :width] for part, width in zip(received, widths, strict=True)], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        start, stop = ctx.own
        return gradient[:, start:stop], None, None
