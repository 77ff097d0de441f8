"""The few rows that are held in full precision: one buffer, reused for every chunk of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.ops.tree import BLOCK

_GRAIN = 32768
_LANES = 32
"""How torch splits elementwise work: no thread gets less than a grain, and a thread's last columns that do not fill
a pair of SIMD vectors go through scalar code, whose exp2 rounds differently."""


class Scratch:
    """``[rows, width]`` values on whole blocks, with room behind them so that every thread's share is whole.

    Args:
        rows: rows held at once.
        width: columns, a multiple of 1,024.
        dtype: float32 or float64.
        device: where.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.width = width
        blocks = rows * width // BLOCK
        self._flat = torch.zeros(_whole_blocks(blocks) * BLOCK, dtype=dtype, device=device)

    def rows(self, count: int) -> Tensor:
        """The first ``count`` rows, ``[count, width]``."""
        return self._flat[: count * self.width].view(count, self.width)

    def exp2_into(self, count: int, target: Scratch) -> Tensor:
        """``2 ** self`` of the first ``count`` rows, written to ``target`` (which may be self)."""
        size = _whole_blocks(count * self.width // BLOCK) * BLOCK
        torch.exp2(self._flat[:size], out=target._flat[:size])
        return target.rows(count)


def _whole_blocks(blocks: int) -> int:
    """The least number of blocks, from ``blocks`` on, that torch splits over its threads in whole SIMD vectors."""
    available = torch.get_num_threads()
    while True:
        threads = min(available, -(-blocks * BLOCK // _GRAIN))
        if threads <= 1 or (blocks * BLOCK) % (threads * _LANES) == 0:
            return blocks
        blocks += 1
