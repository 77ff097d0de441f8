r"""Gradients of the scores by hidden states, weight, and bias, from tiles that are made again.

With ``G`` the gradient by the logits (see `logparity.ops.gradient`)::

    d hidden = G @ weight        d weight = G^T @ hidden        d bias = sum over rows of G

The loop over tiles is the outer one: a tile's part of the weight's gradient is complete before the next tile begins, so
it is summed in one tile's memory and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid
from logparity.ops.gradient import Upstream
from logparity.ops.linear_statistics import load_tile
from logparity.ops.options import Scoring
from logparity.ops.row_gradient import RowGradient
from logparity.ops.scratch import Scratch
from logparity.ops.sizes import TILE_SLICE_BYTES, scratch_rows, tile_rows
from logparity.ops.statistics import working_dtype
from logparity.ops.tiles import Head, TileBuffer, add_product_, adds_unrounded, tile_grids
from logparity.ops.totals import RowTotals


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which gradients are asked for."""

    hidden: bool
    weight: bool
    bias: bool


@dataclass(slots=True)
class LinearGradients:
    """Gradients by what a head is made of; None where nobody asks."""

    hidden: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def linear_gradients(
    head: Head, scoring: Scoring, grid: BlockGrid, totals: RowTotals, upstream: Upstream, wanted: Wanted
) -> LinearGradients:
    """Gradients of all three, each in its tensor's dtype; under a shard ``hidden`` is this rank's partial sum.

    Args:
        head: as in forward.
        scoring: what was asked.
        grid: which columns are held and count; the others get 0.
        totals: statistics of whole rows.
        upstream: gradients that reach the scores.
        wanted: which are computed.

    Returns:
        The gradients.

    Memory:
        The gradients; the one of the hidden states in full precision too; a tile, a slice of it in full precision, and
        the products of one tile.
    """
    sums = _Sums(head, grid, wanted, tile_rows(len(scoring), scoring.chunk_size))
    if grid.owned and len(scoring):
        tiles = _GradientTiles(head, scoring, grid, totals, upstream)
        for tile_grid in tile_grids(grid):
            local = slice(tile_grid.start - grid.start, tile_grid.stop - grid.start)
            weight = head.weight_of(local)
            sums.begin(local)
            for part in tiles.parts:
                sums.add(tiles.gradient(tile_grid, local, weight, part, sums.bias_of(local)), weight, part)
            sums.end(local)
    return sums.rounded()


@dataclass(frozen=True, slots=True)
class _TileGradient:
    """Gradient by the logits of some rows and one tile.

    Args:
        values: ``[rows, columns]`` in the dtype of the hidden states.
        place: int64 ``[rows, 1]``, the column of each row's target; out of range where it is on another tile.
        at_target: ``[rows, 1]``, the gradient there before it was rounded.
    """

    values: Tensor
    place: Tensor
    at_target: Tensor


class _GradientTiles:
    """Makes tiles of logits again and turns them into gradients by the logits, in the dtype of the hidden states."""

    def __init__(self, head: Head, scoring: Scoring, grid: BlockGrid, totals: RowTotals, upstream: Upstream) -> None:
        self._head, self._scoring = head, scoring
        self._dtype, device = working_dtype(head.hidden.dtype), head.hidden.device
        size = tile_rows(len(scoring), scoring.chunk_size)
        self.parts = [slice(at, min(at + size, len(scoring))) for at in range(0, len(scoring), size)]
        self._logits = TileBuffer(size, grid, head.logits_dtype, device)
        same = head.logits_dtype == head.hidden.dtype
        self._gradients = self._logits if same else TileBuffer(size, grid, head.hidden.dtype, device)
        self._rows = RowGradient(totals, upstream, scoring)
        # Where the device answers without being waited for, rows without gradient are left out before this.
        self._active = None if device.type == "cpu" else upstream.active()
        width = max(tile.width for tile in tile_grids(grid))
        scratches = 1 + self._rows.needs_products + (scoring.distribution.softcap is not None)
        self._slice = scratch_rows(width, self._dtype.itemsize, scratches, size, TILE_SLICE_BYTES)
        self._scratches = {
            each: [Scratch(self._slice, each, self._dtype, device) for _ in range(1 + self._rows.needs_products)]
            for each in {tile.width for tile in tile_grids(grid)}
        }

    def gradient(
        self, grid: BlockGrid, local: slice, weight: Tensor, part: slice, bias_sum: Tensor | None
    ) -> _TileGradient:
        """Make one tile's gradient; its unrounded sum over rows is added to ``bias_sum``."""
        count = part.stop - part.start
        logits = self._logits.shaped(count, grid.owned)
        gradient = self._gradients.shaped(count, grid.owned)
        self._head.fill(logits, part, weight)
        bias = None if self._head.bias is None else self._head.bias[local].to(self._dtype)
        place = (self._scoring.targets[part] - grid.start).unsqueeze(1)
        column = place.clamp(0, grid.owned - 1)
        at_target = torch.empty(count, 1, dtype=self._dtype, device=gradient.device)
        scratch, *products = self._scratches[grid.width]
        for start in range(0, count, self._slice):
            inside = slice(start, min(start + self._slice, count))
            rows = slice(part.start + inside.start, part.start + inside.stop)
            values = scratch.rows(inside.stop - inside.start)
            load_tile(values, logits[inside], grid, bias)
            self._scoring.distribution.shape_(values)
            self._rows.form_(scratch, rows, grid, *products)
            if self._active is not None:
                values.masked_fill_(~self._active[rows].unsqueeze(1), 0.0)  # NaN logits of such a row must not leak
            owned = grid.owned_part(values)
            at_target[inside] = owned.gather(1, column[inside])
            gradient[inside].copy_(owned)
            if bias_sum is not None:
                bias_sum += owned.sum(0)
        return _TileGradient(gradient, place, at_target)


class _Sums:
    """Sums of the gradients' parts in full precision, and the tensors they are rounded into."""

    def __init__(self, head: Head, grid: BlockGrid, wanted: Wanted, rows: int) -> None:
        hidden, weight, full = head.hidden, head.weight, working_dtype(head.hidden.dtype)
        self._head, self._one_part, self._full = head, rows >= len(hidden), full
        self._hidden = torch.zeros(hidden.shape, dtype=full, device=hidden.device) if wanted.hidden else None
        self._weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device) if wanted.weight else None
        self._bias = None
        if wanted.bias and head.bias is not None:
            self._bias = torch.zeros(head.bias.shape, dtype=full, device=weight.device)
        if self._weight is not None:
            self._weight[grid.owned if len(hidden) else 0 :].zero_()
        self._tile_weight: Tensor | None = None
        self._tile_sum: Tensor | None = None
        self._products: Tensor | None = None
        self._first = True
        if hidden.dtype != full:
            self._products = self._product_buffer(grid, rows, wanted)
        if self._weight is not None and not self._sums_in_place():
            columns = max((tile.owned for tile in tile_grids(grid)), default=0)
            self._tile_sum = torch.empty(columns, weight.shape[1], dtype=full, device=weight.device)

    def _sums_in_place(self) -> bool:
        """Whether a tile's weight gradient is right after one product, or its own tensor can be summed in."""
        assert self._weight is not None
        same = self._weight.dtype == self._head.hidden.dtype
        return self._weight.dtype == self._full or (self._one_part and same)

    def _product_buffer(self, grid: BlockGrid, rows: int, wanted: Wanted) -> Tensor:
        width = max((tile.owned for tile in tile_grids(grid)), default=0)
        summed = wanted.weight and not (self._one_part and self._head.weight.dtype == self._head.hidden.dtype)
        lines = max(rows * wanted.hidden, width * summed)
        size = lines * self._head.weight.shape[1]
        return torch.empty(size, dtype=self._head.hidden.dtype, device=self._head.hidden.device)

    def bias_of(self, local: slice) -> Tensor | None:
        """The part of the bias' gradient that a tile adds to."""
        return None if self._bias is None else self._bias[local]

    def begin(self, local: slice) -> None:
        """Start a tile."""
        if self._weight is not None:
            whole = self._weight[local] if self._tile_sum is None else self._tile_sum[: local.stop - local.start]
            self._tile_weight, self._first = whole, True

    def add(self, gradient: _TileGradient, weight: Tensor, part: slice) -> None:
        """Add what some rows of a tile give."""
        if self._hidden is not None:
            self._add_hidden(self._hidden[part], gradient, weight)
        if self._tile_weight is None:
            return
        left, right = gradient.values.t(), self._head.hidden[part]
        if self._first and self._tile_weight.dtype == left.dtype:
            torch.mm(left, right, out=self._tile_weight)
        else:
            if self._first:
                self._tile_weight.zero_()
            add_product_(self._tile_weight, left, right, self._products)
        self._first = False

    def _add_hidden(self, total: Tensor, gradient: _TileGradient, weight: Tensor) -> None:
        values = gradient.values
        if self._products is None or adds_unrounded(values, total):
            add_product_(total, values, weight, self._products)
            return
        # Here a product is rounded before it is added. The target's column, often most of the sum, is kept out of it
        # and added unrounded: the error of the whole gets smaller than that of a plain output layer.
        rows = ((gradient.place >= 0) & (gradient.place < values.shape[1])).squeeze(1).nonzero().squeeze(1)
        columns, exact = gradient.place[rows, 0], gradient.at_target[rows]
        values[rows, columns] = 0
        add_product_(total, values, weight, self._products)
        total.index_add_(0, rows, weight[columns].to(total.dtype).mul_(exact))
        values[rows, columns] = exact.squeeze(1).to(values.dtype)

    def end(self, local: slice) -> None:
        """Round a tile's weight gradient into its place."""
        if self._weight is not None and self._tile_sum is not None:
            self._weight[local] = self._tile_sum[: local.stop - local.start]

    def rounded(self) -> LinearGradients:
        """The gradients, each rounded once."""
        self._tile_weight = self._tile_sum = self._products = None  # room for the rounded copy
        hidden = None if self._hidden is None else self._hidden.to(self._head.hidden.dtype)
        bias = None
        if self._bias is not None and self._head.bias is not None:
            bias = self._bias.to(self._head.bias.dtype)
        return LinearGradients(hidden, self._weight, bias)
