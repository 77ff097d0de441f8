"""Gradient of the scores by the logits, recomputed a few rows at a time from row statistics."""

from __future__ import annotations

from torch import Tensor

from logparity.ops.blocks import BlockGrid
from logparity.ops.gradient import Upstream
from logparity.ops.options import Scoring
from logparity.ops.row_gradient import RowGradient
from logparity.ops.rows import RowView, row_chunks
from logparity.ops.scratch import Scratch
from logparity.ops.sizes import scratch_rows
from logparity.ops.statistics import working_dtype
from logparity.ops.totals import RowTotals


def write_gradient(
    logits: Tensor, out: Tensor, scoring: Scoring, grid: BlockGrid, totals: RowTotals, upstream: Upstream
) -> None:
    """Write the gradient of the scored rows and the counted columns into ``out``; padding columns get 0.

    Args:
        logits: ``[.., V_local]``, as they were in forward.
        out: of the same shape; may be the logits themselves: every row is read before it is written.
        scoring: what was asked.
        grid: which columns are held and count.
        totals: statistics of whole rows.
        upstream: gradients that reach the scores.
    """
    if out.shape[-1] > grid.owned:
        out[..., grid.owned :].zero_()
    if not grid.owned or not len(scoring):
        return
    source, sink = RowView(logits, grid.owned), RowView(out, grid.owned)
    dtype, gradient = working_dtype(logits.dtype), RowGradient(totals, upstream, scoring)
    scratches = 1 + gradient.needs_products + (scoring.distribution.softcap is not None)
    size = min(scratch_rows(grid.width, dtype.itemsize, scratches, scoring.chunk_size), len(scoring))
    scratch, *products = (Scratch(size, grid.width, dtype, logits.device) for _ in range(1 + gradient.needs_products))
    for chunk in row_chunks(scoring.rows, slice(0, len(scoring)), size):
        values = scratch.rows(chunk.count)
        grid.pad_(values)
        source.read(chunk.rows, grid.owned_part(values))
        scoring.distribution.shape_(values)
        gradient.form_(scratch, chunk.positions, grid, *products)
        sink.write(chunk.rows, grid.owned_part(values))
