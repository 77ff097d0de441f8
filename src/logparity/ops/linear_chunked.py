"""Scores from hidden states, tile by tile, with a backward that makes the tiles again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid
from logparity.ops.first_order import first_order_only
from logparity.ops.gradient import Upstream
from logparity.ops.linear_gradient import LinearGradients, Wanted, linear_gradients
from logparity.ops.linear_statistics import linear_statistics
from logparity.ops.options import Entropy, Scoring
from logparity.ops.results import TokenLogProbs
from logparity.ops.statistics import working_dtype
from logparity.ops.tiles import Head
from logparity.ops.totals import RowTotals, gather_totals
from logparity.parallel.collectives import Exchange
from logparity.parallel.vocab import ShardLayout


def linear_scores(head: Head, scoring: Scoring, exchange: Exchange) -> TokenLogProbs:
    """Scores of flat targets ``[N]``, target ``i`` on row ``i`` of the hidden states.

    Args:
        head: hidden states, weight, bias.
        scoring: what is asked.
        exchange: the collective, and who holds which columns.

    Returns:
        Scores ``[N]`` in float32 (float64 for float64 hidden states).
    """
    tensors = [each for each in (head.hidden, head.weight, head.bias) if each is not None]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        inputs = (head.hidden, head.weight, head.bias, head.logits_dtype, scoring, exchange)
        return TokenLogProbs._make(_LinearScores.apply(*inputs))  # type: ignore[no-untyped-call]
    return _totals(head, scoring, exchange).outputs(working_dtype(head.hidden.dtype))


def _totals(head: Head, scoring: Scoring, exchange: Exchange) -> RowTotals:
    return gather_totals(linear_statistics(head, scoring, _grid(scoring, exchange.layout)), scoring, exchange)


def _grid(scoring: Scoring, layout: ShardLayout) -> BlockGrid:
    return BlockGrid.of(*layout.own, scoring.columns)


class _LinearScores(torch.autograd.Function):
    """Log-prob, entropy, and supported log-prob together; saves its inputs and a few numbers per target."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        logits_dtype: torch.dtype,
        scoring: Scoring,
        exchange: Exchange,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        totals = _totals(Head(hidden, weight, bias, logits_dtype), scoring, exchange)
        outputs = totals.outputs(working_dtype(hidden.dtype))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, *totals)
        ctx.logits_dtype, ctx.scoring, ctx.layout = logits_dtype, scoring, exchange.layout
        if outputs.entropy is not None and scoring.entropy is Entropy.VALUE:
            ctx.mark_non_differentiable(outputs.entropy)
        return outputs

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, *totals = ctx.saved_tensors
        upstream = Upstream.of(*gradients)
        active = upstream.active()
        if active is None:
            return (None,) * 6
        head = Head(hidden, weight, bias, ctx.logits_dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            found = _gradients(head, ctx, RowTotals(*totals), upstream, active)
        return found.hidden, found.weight, found.bias, None, None, None


def _gradients(head: Head, ctx: Any, totals: RowTotals, upstream: Upstream, active: Tensor) -> LinearGradients:
    scoring, wanted = ctx.scoring, Wanted(*ctx.needs_input_grad[:3])
    grid = _grid(scoring, ctx.layout)
    # Which rows have a gradient is a question to the device: only the CPU answers without being waited for.
    if active.device.type != "cpu" or bool(active.all()):
        return linear_gradients(head, scoring, grid, totals, upstream, wanted)
    rows = active.nonzero().flatten()
    some = RowTotals._make(None if each is None else each[rows] for each in totals)
    found = linear_gradients(
        replace(head, hidden=head.hidden[rows]), scoring.select(rows), grid, some, upstream.select(rows), wanted
    )
    if found.hidden is not None:
        found.hidden = torch.zeros_like(head.hidden).index_copy_(0, rows, found.hidden)
    return found
