"""Tiles of logits made from hidden states: some rows times 4,096 columns, on the fixed grid of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid
from logparity.ops.sizes import TILE_COLUMNS

_ADDED_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True)
class Head:
    """An output layer, or one rank's part of it.

    Args:
        hidden: ``[N, H]``, contiguous.
        weight: ``[V_local, H]``; its rows are cast to the dtype of ``hidden`` tile by tile.
        bias: ``[V_local]``, or None.
        logits_dtype: dtype of a tile of logits.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    logits_dtype: torch.dtype

    def weight_of(self, columns: slice) -> Tensor:
        """Rows of the weight in the dtype of the hidden states."""
        return self.weight[columns].to(self.hidden.dtype)

    def fill(self, tile: Tensor, rows: slice, weight: Tensor) -> None:
        """Write the logits of ``rows`` times a tile's ``weight`` into ``tile``; the bias is added later, in fp32."""
        hidden = self.hidden[rows]
        if tile.dtype == hidden.dtype:
            torch.mm(hidden, weight.t(), out=tile)
        elif adds_unrounded(hidden, tile):
            torch.mm(hidden, weight.t(), out_dtype=tile.dtype, out=tile)
        else:
            torch.mm(hidden.to(tile.dtype), weight.to(tile.dtype).t(), out=tile)


def tile_grids(grid: BlockGrid) -> Iterator[BlockGrid]:
    """Cut a grid at multiples of `TILE_COLUMNS` by global index, so that tiles hold whole blocks wherever it starts."""
    start = grid.start
    while start < grid.stop:
        stop = min((start // TILE_COLUMNS + 1) * TILE_COLUMNS, grid.stop)
        yield BlockGrid(start=start, stop=stop, columns=grid.columns)
        start = stop


class TileBuffer:
    """One reused buffer for tiles of any size up to ``rows`` times `TILE_COLUMNS`; a tile is contiguous in it."""

    def __init__(self, rows: int, grid: BlockGrid, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = torch.empty(rows * min(TILE_COLUMNS, grid.owned), dtype=dtype, device=device)

    def shaped(self, rows: int, columns: int) -> Tensor:
        """``[rows, columns]`` of the buffer."""
        return self._flat[: rows * columns].view(rows, columns)


def add_product_(total: Tensor, left: Tensor, right: Tensor, scratch: Tensor | None) -> None:
    """``total += left @ right``, summed in the dtype of ``total``.

    Args:
        total: fp32 or fp64, or the dtype of the factors.
        left: ``[n, k]``.
        right: ``[k, m]``.
        scratch: flat, ``n * m`` or more in the factors' dtype; takes the product where the device cannot add it
            unrounded. None where dtypes agree.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif adds_unrounded(left, total):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        assert scratch is not None
        product = torch.mm(left, right, out=scratch[: total.numel()].view(total.shape))
        # Some lines at a time: torch upcasts the whole of a half-precision summand before it adds on CPU.
        lines = max(1, _ADDED_AT_ONCE // total.shape[1])
        for at in range(0, len(total), lines):
            total[at : at + lines].add_(product[at : at + lines])


def adds_unrounded(factor: Tensor, result: Tensor) -> bool:
    """Whether the device adds a product of half-precision factors to an fp32 sum unrounded (CUDA, torch >= 2.8)."""
    return (
        factor.device.type == "cuda"
        and factor.dtype in (torch.bfloat16, torch.float16)
        and result.dtype == torch.float32
        and tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 8)
    )
