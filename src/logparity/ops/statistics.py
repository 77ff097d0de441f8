"""One pass over the logits: block statistics in full precision, reduced to the tree nodes this rank owns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid, block_fields, block_statistics
from logparity.ops.options import Entropy, Scoring
from logparity.ops.rows import RowView, row_chunks
from logparity.ops.scratch import Scratch
from logparity.ops.sizes import SLAB_BLOCKS, scratch_rows
from logparity.ops.support import SupportEntries
from logparity.ops.tree import BLOCK, Rate, Stats, reduce_blocks


class LocalStatistics(NamedTuple):
    """What one rank knows of ``N`` rows; all float64.

    Args:
        nodes: statistics ``[N, nodes]`` of the tree nodes it owns.
        target: shaped logit of each target ``[N]``; NaN where the target is not among the owned columns.
        support: statistics ``[N, nodes]`` of the same nodes over the supports' ids alone.
    """

    nodes: Stats
    target: Tensor
    support: Stats | None


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Precision of the scratch and of the outputs: float32, or float64 for float64 logits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def local_statistics(logits: Tensor, scoring: Scoring, grid: BlockGrid) -> LocalStatistics:
    """Statistics of this rank's columns for all rows.

    Args:
        logits: ``[.., V_local]``.
        scoring: what is asked.
        grid: which columns are held and count.

    Returns:
        Float64 statistics; a few numbers per row.

    Memory:
        ``SCRATCH_BYTES`` for the rows in full precision, a few MiB for the block statistics of a slab of rows.
    """
    view = RowView(logits, grid.owned)
    dtype = working_dtype(logits.dtype)
    target = shaped_elements(view, scoring, scoring.row_index(), scoring.targets, grid, dtype)
    nodes = NodeCollector(len(scoring), grid.nodes, scoring.entropy is not Entropy.NONE, logits.device)
    supports = None if scoring.support is None else NodeCollector(len(scoring), grid.nodes, False, logits.device)
    if grid.owned:
        picked = None
        if scoring.support is not None:
            rows = scoring.row_index()[scoring.support.row]
            picked = shaped_elements(view, scoring, rows, scoring.support.id, grid, dtype)
        scan = _Scan(view, scoring, grid, dtype, logits.device)
        slab = max(1, SLAB_BLOCKS // grid.count)
        for start in range(0, len(scoring), slab):
            part = slice(start, min(start + slab, len(scoring)))
            rate = scoring.distribution.rate(part)
            nodes.put(part, reduced(scan.blocks(part), grid, rate))
            if supports is not None and picked is not None and scoring.support is not None:
                supports.put(part, reduced(support_blocks(scoring.support, picked, part, grid, rate), grid, rate))
    return LocalStatistics(nodes.stats, target, None if supports is None else supports.stats)


def shaped_elements(
    view: RowView, scoring: Scoring, rows: Tensor, ids: Tensor, grid: BlockGrid, dtype: torch.dtype
) -> Tensor:
    """Softcapped logits of single elements, float64; NaN where the id is not among the owned columns."""
    owned = (ids >= grid.start) & (ids < grid.stop)
    if not grid.owned:
        return torch.full(ids.shape, torch.nan, dtype=torch.float64, device=ids.device)
    values = view.pick(rows, torch.where(owned, ids - grid.start, 0)).to(dtype)
    return scoring.distribution.shape_(values).to(torch.float64).masked_fill_(~owned, torch.nan)


class _Scan:
    """Reads rows into a scratch and takes the statistics of their blocks."""

    def __init__(
        self, view: RowView, scoring: Scoring, grid: BlockGrid, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._view, self._scoring, self._grid = view, scoring, grid
        self._weighted = scoring.entropy is not Entropy.NONE
        scratches = 2 if self._weighted else 1
        temporaries = scoring.distribution.softcap is not None
        rows = scratch_rows(grid.width, dtype.itemsize, scratches + temporaries, scoring.chunk_size)
        self._size = min(rows, max(1, len(scoring)))
        self._scratch, *more = (Scratch(self._size, grid.width, dtype, device) for _ in range(scratches))
        self._products = more[0] if more else None

    def blocks(self, part: slice) -> Stats:
        """Float64 statistics ``[rows, blocks]`` of a slab of rows."""
        fields = block_fields(part.stop - part.start, self._grid.count, self._weighted, self._scratch.rows(1))
        for chunk in row_chunks(self._scoring.rows, part, self._size):
            values = self._scratch.rows(chunk.count)
            self._grid.pad_(values)
            self._view.read(chunk.rows, self._grid.owned_part(values))
            self._scoring.distribution.shape_(values)
            inside = slice(chunk.positions.start - part.start, chunk.positions.stop - part.start)
            out = Stats._make(None if field is None else field[inside] for field in fields)
            rate = self._scoring.distribution.rate(chunk.positions)
            block_statistics(self._scratch, chunk.count, rate, out, self._products)
        return Stats._make(None if field is None else field.to(torch.float64) for field in fields)


def support_blocks(entries: SupportEntries, values: Tensor, part: slice, grid: BlockGrid, rate: Rate) -> Stats:
    """Block statistics over a slab's support ids alone; repeated ids and those of other ranks count for nothing."""
    span = entries.span(part)
    row, token = entries.row[span] - part.start, entries.id[span]
    counts = (token >= grid.start) & (token < grid.stop) & ~entries.repeated[span]
    logits = values[span].masked_fill(~counts, -torch.inf)
    place = row * grid.count + torch.where(counts, token // BLOCK - grid.first, 0)
    size = (part.stop - part.start) * grid.count
    top = logits.new_full((size,), -torch.inf).scatter_reduce_(0, place, logits, "amax")
    reference = top.clamp(min=torch.finfo(top.dtype).min)
    factor = rate[row, 0] if isinstance(rate, Tensor) else rate
    exponentials = ((logits - reference[place]) * factor).exp_()
    total = torch.zeros_like(top).index_add_(0, place, exponentials)
    shape = (part.stop - part.start, grid.count)
    return Stats(top.view(shape), total.view(shape))


def reduced(blocks: Stats, grid: BlockGrid, rate: Rate) -> Stats:
    """A slab's block statistics reduced to the nodes that the grid's owner holds whole."""
    return reduce_blocks(blocks, grid.start, grid.stop, grid.columns, rate)


class NodeCollector:
    """Node statistics of all rows, filled slab by slab."""

    def __init__(self, rows: int, nodes: int, weighted: bool, device: torch.device) -> None:
        fields = (torch.empty(rows, nodes, dtype=torch.float64, device=device) for _ in range(2 + weighted))
        self.stats = Stats(*fields)

    def put(self, part: slice, stats: Stats) -> None:
        """Store the statistics of a slab of rows."""
        for mine, theirs in zip(self.stats, stats, strict=True):
            if mine is not None and theirs is not None:
                mine[part] = theirs
