"""Scores from logits a few rows at a time, with a backward that recomputes instead of remembering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid
from logparity.ops.first_order import first_order_only
from logparity.ops.gradient import Upstream
from logparity.ops.logits_gradient import write_gradient
from logparity.ops.options import Entropy, Scoring
from logparity.ops.results import TokenLogProbs
from logparity.ops.rows import zero_rows_
from logparity.ops.statistics import local_statistics, working_dtype
from logparity.ops.totals import RowTotals, gather_totals
from logparity.parallel.collectives import Exchange
from logparity.parallel.vocab import ShardLayout


@dataclass(frozen=True, slots=True)
class GradientPlace:
    """Where the gradient goes: a fresh tensor unless said otherwise.

    Args:
        into_logits: overwrite the logits.
        buffer: overwrite this tensor.
    """

    into_logits: bool = False
    buffer: Tensor | None = None

    @property
    def overwrites(self) -> bool:
        """Whether a second backward would find its place taken."""
        return self.into_logits or self.buffer is not None


def chunked_scores(logits: Tensor, scoring: Scoring, exchange: Exchange, place: GradientPlace) -> TokenLogProbs:
    """Scores of flat targets ``[N]``.

    Args:
        logits: ``[.., V_local]``.
        scoring: what is asked.
        exchange: the collective, and who holds which columns.
        place: where the gradient goes.

    Returns:
        Scores ``[N]`` in float32 (float64 for float64 logits).

    Memory:
        ``SCRATCH_BYTES`` for rows in full precision, and tens of bytes per target; backward the same and the
        gradient.
    """
    if torch.is_grad_enabled() and logits.requires_grad:
        return TokenLogProbs(*_ChunkedScores.apply(logits, scoring, exchange, place))  # type: ignore[no-untyped-call]
    totals = _totals(logits, scoring, exchange)
    return totals.outputs(working_dtype(logits.dtype))


def _totals(logits: Tensor, scoring: Scoring, exchange: Exchange) -> RowTotals:
    return gather_totals(local_statistics(logits, scoring, _grid(scoring, exchange.layout)), scoring, exchange)


def _grid(scoring: Scoring, layout: ShardLayout) -> BlockGrid:
    return BlockGrid.of(*layout.own, scoring.columns)


class _ChunkedScores(torch.autograd.Function):
    """Log-prob, entropy, and supported log-prob together; saves the logits and a few numbers per target."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, scoring: Scoring, exchange: Exchange, place: GradientPlace
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        totals = _totals(logits, scoring, exchange)
        outputs = totals.outputs(working_dtype(logits.dtype))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, *totals)
        ctx.scoring, ctx.layout, ctx.place, ctx.spent = scoring, exchange.layout, place, False
        if outputs.entropy is not None and scoring.entropy is Entropy.VALUE:
            ctx.mark_non_differentiable(outputs.entropy)
        return outputs

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if ctx.spent:
            raise RuntimeError(
                "token_log_probs: a second backward found its gradient written over the logits or grad_buffer. "
                "Expected one backward; call without grad_into_logits and grad_buffer to use retain_graph."
            )
        logits, *totals = _saved(ctx)
        ctx.spent = ctx.place.overwrites
        upstream = Upstream.of(*gradients)
        return (
            scores_gradient(logits, ctx.scoring, ctx.layout, ctx.place, RowTotals(*totals), upstream),
            None,
            None,
            None,
        )


def _saved(ctx: Any) -> tuple[Tensor, ...]:
    try:
        return tuple(ctx.saved_tensors)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise RuntimeError(
            "token_log_probs: expected the logits as they were in forward, but they were modified in place since. "
            "Where another call wrote its gradient into them (grad_into_logits), let each call have its own gradient."
        ) from error


def scores_gradient(
    logits: Tensor, scoring: Scoring, layout: ShardLayout, place: GradientPlace, totals: RowTotals, upstream: Upstream
) -> Tensor | None:
    """Gradient of the scores in the logits' shape and dtype; None where no gradient reaches any score.

    Args:
        logits: ``[.., V_local]``, as they were in forward.
        scoring: what was asked.
        layout: who holds which columns.
        place: where the gradient goes.
        totals: statistics of whole rows, from forward.
        upstream: gradients that reach the scores.

    Returns:
        The gradient; rows whose scores have no gradient, and padding columns, are exactly 0.
    """
    active = upstream.active()
    if active is None:
        return None
    # Rows without gradient are not even read: NaN there must not leak.
    scoring, totals, upstream, covered = _needed(logits, scoring, totals, upstream, active)
    out = _output(logits, place)
    write_gradient(logits, out, scoring, _grid(scoring, layout), totals, upstream)
    if covered is not None:
        zero_rows_(out, covered)
    return out


def _needed(
    logits: Tensor, scoring: Scoring, totals: RowTotals, upstream: Upstream, active: Tensor
) -> tuple[Scoring, RowTotals, Upstream, Tensor | None]:
    """Leave out targets without gradient; returns also which rows are left (None for all)."""
    rows = logits.shape[:-1].numel()
    # Which rows those are is a question to the device: only the CPU answers without being waited for.
    if active.device.type == "cpu" and not bool(active.all()):
        positions = active.nonzero().flatten()
        scoring, upstream = scoring.select(positions), upstream.select(positions)
        totals = totals.select(positions)
        active = active[positions]
    if len(scoring) == rows and active.device.type == "cpu":
        return scoring, totals, upstream, None
    covered = torch.zeros(rows, dtype=torch.bool, device=logits.device)
    covered[scoring.row_index()] = active
    return scoring, totals, upstream, covered


def _output(logits: Tensor, place: GradientPlace) -> Tensor:
    if place.into_logits:
        return logits.detach()  # shares the version counter: autograd notices whoever else needs these logits
    if place.buffer is not None:
        return place.buffer
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
