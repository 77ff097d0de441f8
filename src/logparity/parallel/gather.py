"""Gather the full vocabulary from its shards, with a backward that needs no collective."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logparity.parallel.collectives import Exchange
from logparity.parallel.vocab import ShardLayout


def gather_columns(shard: Tensor, exchange: Exchange) -> Tensor:
    """All ranks' columns next to each other; backward takes this rank's own slice of the gradient.

    Every rank computes the same loss from the same full rows, so its slice of the gradient is whole already: a
    reduce-scatter would count it once per rank.

    Args:
        shard: ``[N, V_local]``, ``N`` and dtype equal on every rank.
        exchange: the collective, with room for `columns_bytes`.

    Returns:
        ``[N, V]``; the shard itself for a single process.
    """
    if exchange.layout.alone:
        return shard
    gathered: Tensor = _GatherColumns.apply(shard, exchange)  # type: ignore[no-untyped-call]
    return gathered


def columns_bytes(rows: int, layout: ShardLayout, itemsize: int) -> int:
    """Bytes of payload of `gather_columns`, the same on every rank."""
    return rows * _widest(layout) * itemsize


def _widest(layout: ShardLayout) -> int:
    return max(stop - start for start, stop in layout.bounds)


class _GatherColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, exchange: Exchange) -> Tensor:
        layout = exchange.layout
        ctx.own = layout.own
        widths = [stop - start for start, stop in layout.bounds]
        padded = torch.nn.functional.pad(shard.detach(), (0, _widest(layout) - shard.shape[1]))
        return torch.cat([part[:, :width] for part, width in zip(exchange(padded), widths, strict=True)], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        start, stop = ctx.own
        return gradient[:, start:stop], None
