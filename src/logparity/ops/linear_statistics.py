"""One pass over tiles of logits: the same block statistics as from logits, without the logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid, block_fields, block_statistics
from logparity.ops.options import Entropy, Scoring
from logparity.ops.scratch import Scratch
from logparity.ops.sizes import SLAB_BLOCKS, TILE_SLICE_BYTES, scratch_rows, tile_rows
from logparity.ops.statistics import (
    LocalStatistics,
    NodeCollector,
    reduced,
    support_blocks,
    working_dtype,
)
from logparity.ops.tiles import Head, TileBuffer, tile_grids
from logparity.ops.tree import Stats


def linear_statistics(head: Head, scoring: Scoring, grid: BlockGrid) -> LocalStatistics:
    """Statistics of this rank's columns for all rows, as `logparity.ops.statistics.local_statistics` from logits.

    Args:
        head: hidden states, weight, bias.
        scoring: what is asked; its ``rows`` are not looked at, hidden states are selected already.
        grid: which columns are held and count.

    Returns:
        Float64 statistics; a few numbers per row.

    Memory:
        One tile, a slice of it in full precision, and the block statistics of a tile's rows.
    """
    count, device = len(scoring), head.hidden.device
    nodes = NodeCollector(count, grid.nodes, scoring.entropy is not Entropy.NONE, device)
    supports = None if scoring.support is None else NodeCollector(count, grid.nodes, False, device)
    target = torch.full((count,), torch.nan, dtype=torch.float64, device=device)
    picked = None
    if scoring.support is not None:
        picked = torch.full(scoring.support.id.shape, torch.nan, dtype=torch.float64, device=device)
    if grid.owned and count:
        scan = _TileScan(head, scoring, grid)
        size = tile_rows(count, scoring.chunk_size)
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            blocks = scan.rows(part, target, picked)
            _merge(blocks, part, scoring, grid, nodes)
            if supports is not None and picked is not None:
                _merge_supports(picked, part, scoring, grid, supports)
    return LocalStatistics(nodes.stats, target, None if supports is None else supports.stats)


def _slabs(part: slice, grid: BlockGrid) -> Iterator[slice]:
    """Cut rows so that the merge, which holds several float64 numbers a block, holds little at a time."""
    size = max(1, SLAB_BLOCKS // grid.count)
    for start in range(part.start, part.stop, size):
        yield slice(start, min(start + size, part.stop))


def _merge(blocks: Stats, part: slice, scoring: Scoring, grid: BlockGrid, nodes: NodeCollector) -> None:
    for rows in _slabs(part, grid):
        inside = slice(rows.start - part.start, rows.stop - part.start)
        fields = (field[inside].double() for field in blocks if field is not None)
        nodes.put(rows, reduced(Stats(*fields), grid, scoring.distribution.rate(rows)))


def _merge_supports(picked: Tensor, part: slice, scoring: Scoring, grid: BlockGrid, supports: NodeCollector) -> None:
    assert scoring.support is not None
    for rows in _slabs(part, grid):
        rate = scoring.distribution.rate(rows)
        supports.put(rows, reduced(support_blocks(scoring.support, picked, rows, grid, rate), grid, rate))


class _TileScan:
    """Multiplies rows by tile after tile and takes what is needed of each."""

    def __init__(self, head: Head, scoring: Scoring, grid: BlockGrid) -> None:
        self._head, self._scoring, self._grid = head, scoring, grid
        self._weighted = scoring.entropy is not Entropy.NONE
        self._dtype = working_dtype(head.hidden.dtype)
        device, tiles = head.hidden.device, list(tile_grids(grid))
        self._tiles = tiles
        rows = tile_rows(len(scoring), scoring.chunk_size)
        self._buffer = TileBuffer(rows, grid, head.logits_dtype, device)
        width, scratches = max(tile.width for tile in tiles), 1 + self._weighted
        temporaries = scoring.distribution.softcap is not None
        self._slice = scratch_rows(width, self._dtype.itemsize, scratches + temporaries, rows, TILE_SLICE_BYTES)
        self._scratches = {
            width: [Scratch(self._slice, width, self._dtype, device) for _ in range(scratches)]
            for width in {tile.width for tile in tiles}
        }

    def rows(self, part: slice, target: Tensor, picked: Tensor | None) -> Stats:
        """Statistics of all blocks for some rows; writes the logits of their targets and supports, float64."""
        count, device = part.stop - part.start, self._head.hidden.device
        like = torch.empty(0, dtype=self._dtype, device=device)
        fields = block_fields(count, self._grid.count, self._weighted, like)
        own = torch.full((count,), torch.nan, dtype=self._dtype, device=device)
        picks = None if picked is None else _SupportPicks(self._scoring, part, self._tiles, self._dtype)
        for tile_grid in self._tiles:
            local = slice(tile_grid.start - self._grid.start, tile_grid.stop - self._grid.start)
            tile = self._buffer.shaped(count, tile_grid.owned)
            self._head.fill(tile, part, self._head.weight_of(local))
            bias = None if self._head.bias is None else self._head.bias[local].to(self._dtype)
            self._pick_targets(own, tile, tile_grid, bias, part)
            if picks is not None:
                picks.take(tile, tile_grid, bias)
            first = tile_grid.first - self._grid.first
            self._statistics(tile, tile_grid, bias, part, fields.sets(slice(first, first + tile_grid.count)))
        target[part] = self._scoring.distribution.shape_(own).double()
        if picks is not None and picked is not None:
            picked[picks.span] = self._scoring.distribution.shape_(picks.values).double()
        return fields

    def _statistics(self, tile: Tensor, grid: BlockGrid, bias: Tensor | None, part: slice, fields: Stats) -> None:
        scratch, *products = self._scratches[grid.width]
        for start in range(0, len(tile), self._slice):
            inside = slice(start, min(start + self._slice, len(tile)))
            count = inside.stop - inside.start
            values = scratch.rows(count)
            load_tile(values, tile[inside], grid, bias)
            self._scoring.distribution.shape_(values)
            rate = self._scoring.distribution.rate(slice(part.start + inside.start, part.start + inside.stop))
            out = Stats._make(None if field is None else field[inside] for field in fields)
            block_statistics(scratch, count, rate, out, *products)

    def _pick_targets(self, target: Tensor, tile: Tensor, grid: BlockGrid, bias: Tensor | None, part: slice) -> None:
        place = self._scoring.targets[part] - grid.start
        owned = (place >= 0) & (place < grid.owned)
        place = place.clamp_(0, grid.owned - 1)
        values = tile.gather(1, place.unsqueeze(1)).squeeze(1).to(target.dtype)
        values = values if bias is None else values + bias[place]
        torch.where(owned, values, target, out=target)


class _SupportPicks:
    """Logits of the supports' ids of some rows, collected tile by tile; NaN where an id is on no tile of this rank."""

    def __init__(self, scoring: Scoring, part: slice, tiles: Sequence[BlockGrid], dtype: torch.dtype) -> None:
        assert scoring.support is not None
        self.span = span = scoring.support.span(part)
        token = scoring.support.id[span]
        self._order = token.argsort()
        self._token = token[self._order]
        self._row = (scoring.support.row[span] - part.start)[self._order]
        self.values = torch.full((len(token),), torch.nan, dtype=dtype, device=token.device)
        edges = torch.tensor([edge for tile in tiles for edge in (tile.start, tile.stop)], device=token.device)
        marks = torch.searchsorted(self._token, edges).tolist()  # for all tiles at once: a GPU is waited for once
        self._spans = {tile: slice(*marks[2 * at : 2 * at + 2]) for at, tile in enumerate(tiles)}

    def take(self, tile: Tensor, grid: BlockGrid, bias: Tensor | None) -> None:
        """Copy the logits that lie on a tile."""
        found = self._spans[grid]
        place = self._token[found] - grid.start
        values = tile[self._row[found], place].to(self.values.dtype)
        self.values[self._order[found]] = values if bias is None else values + bias[place]


def load_tile(values: Tensor, tile: Tensor, grid: BlockGrid, bias: Tensor | None) -> None:
    """Upcast rows of a tile into a scratch ``[rows, grid.width]``, padded to whole blocks, and add the bias."""
    grid.pad_(values)
    owned = grid.owned_part(values)
    owned.copy_(tile)
    if bias is not None:
        owned.add_(bias)
