"""Rows of a ``[.., V]`` tensor by flat index, without copying the tensor where its axes do not flatten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Consecutive targets and the rows they are on.

    Args:
        positions: which targets.
        rows: the rows of logits: a slice where they are consecutive, else int64 indices.
    """

    positions: slice
    rows: slice | Tensor

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.positions.stop - self.positions.start)


def row_chunks(rows: Tensor | None, positions: slice, size: int) -> Iterator[RowChunk]:
    """Cut targets into chunks of at most ``size`` rows."""
    for start in range(positions.start, positions.stop, size):
        part = slice(start, min(start + size, positions.stop))
        yield RowChunk(part, part if rows is None else _as_slice(rows[part]))


def _as_slice(index: Tensor) -> slice | Tensor:
    if index.device.type != "cpu" or bool((index.diff() != 1).any()):
        return index
    return slice(int(index[0]), int(index[-1]) + 1)


class RowView:
    """Access to the first ``columns`` columns of a tensor's rows.

    Args:
        tensor: ``[.., V]``.
        columns: how many columns to show.
    """

    def __init__(self, tensor: Tensor, columns: int) -> None:
        self._leading = tensor.shape[:-1]
        self._tensor = tensor[..., :columns]
        self._flat = _flattened(self._tensor)
        self.itemsize = tensor.element_size()

    def read(self, rows: slice | Tensor, out: Tensor) -> None:
        """Copy rows into ``out`` ``[rows, columns]``, converting to its dtype."""
        out.copy_(self._flat[rows] if self._flat is not None else self._tensor[self._index(rows)])

    def write(self, rows: slice | Tensor, values: Tensor) -> None:
        """Copy ``values`` ``[rows, columns]`` into rows, rounding to the tensor's dtype."""
        if self._flat is not None and isinstance(rows, slice):
            self._flat[rows].copy_(values)
        elif self._flat is not None:
            self._flat[rows] = values.to(self._flat.dtype)
        else:
            self._tensor[self._index(rows)] = values.to(self._tensor.dtype)

    def take(self, rows: Tensor) -> Tensor:
        """A copy of rows ``[rows, columns]``."""
        return self._flat[rows] if self._flat is not None else self._tensor[self._index(rows)]

    def pick(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Single elements ``[N]``."""
        if self._flat is not None:
            return self._flat[rows, columns]
        return self._tensor[(*self._index(rows), columns)]

    def _index(self, rows: slice | Tensor) -> tuple[Tensor, ...]:
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop, device=self._tensor.device)
        return torch.unravel_index(rows, self._leading)


def _flattened(tensor: Tensor) -> Tensor | None:
    try:
        return tensor.view(-1, tensor.shape[-1]) if tensor.shape[-1] else tensor.new_empty(tensor.shape[:-1].numel(), 0)
    except RuntimeError:  # such axes do not flatten without a copy
        return None


def zero_rows_(tensor: Tensor, covered: Tensor) -> None:
    """Set the rows of ``[.., V]`` that ``covered`` (bool, one per flat row) leaves out to exactly 0."""
    left_out = covered.logical_not().view(tensor.shape[:-1])
    if tensor.device.type != "cpu":
        tensor.masked_fill_(left_out.unsqueeze(-1), 0)
        return
    flat = _flattened(tensor)
    if flat is None:
        tensor[left_out] = 0
        return
    for start, stop in _runs(left_out.view(-1)):
        flat[start:stop].zero_()


def _runs(mask: Tensor) -> list[tuple[int, int]]:
    """Maximal runs ``[start, stop)`` of True."""
    steps = torch.cat([mask.new_zeros(1), mask, mask.new_zeros(1)]).to(torch.int8).diff()
    starts, stops = (steps == 1).nonzero().flatten().tolist(), (steps == -1).nonzero().flatten().tolist()
    return list(zip(starts, stops, strict=True))
