"""Fixed blocks of 1,024 columns by global index, and their statistics in one fixed order.

Row statistics never depend on how many rows are held at a time, on threads, or on where a shard begins, because every
block is summed alone: its columns sit at the same place of a padded scratch whatever the run looks like, and
elementwise operations and sums along a row of 1,024 do not look beyond it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from logparity.ops.scratch import Scratch
from logparity.ops.tree import BLOCK, FLOOR, Rate, Stats, block_count, owned_nodes

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """The blocks that an owner's columns ``[start, stop)`` fall on, of ``columns`` in all (padding excluded).

    Args:
        start: first global column owned.
        stop: one past the last that counts; ``start`` where every owned column is padding.
        columns: columns of the whole vocabulary that count.
    """

    start: int
    stop: int
    columns: int

    @classmethod
    def of(cls, start: int, stop: int, columns: int) -> BlockGrid:
        """The grid of an owner, its columns cut to the ``columns`` that count."""
        return cls(start=start, stop=max(start, min(stop, columns)), columns=columns)

    @property
    def owned(self) -> int:
        """Number of owned columns that count."""
        return self.stop - self.start

    @property
    def first(self) -> int:
        """Number of the first block touched."""
        return self.start // BLOCK

    @property
    def count(self) -> int:
        """Number of blocks touched."""
        return block_count(self.stop) - self.first if self.owned else 0

    @property
    def offset(self) -> int:
        """Place of the first owned column within the padded scratch."""
        return self.start % BLOCK

    @property
    def width(self) -> int:
        """Columns of the padded scratch."""
        return self.count * BLOCK

    @property
    def nodes(self) -> int:
        """Number of tree nodes that the owner reduces its blocks to."""
        return len(owned_nodes(self.start, self.stop, self.columns))

    def owned_part(self, values: Tensor) -> Tensor:
        """View of the owned columns of scratch rows ``[rows, width]``."""
        return values[:, self.offset : self.offset + self.owned]

    def pad_(self, values: Tensor) -> None:
        """Set what is not owned to -inf: columns that have no part in anything."""
        values[:, : self.offset].fill_(-torch.inf)
        values[:, self.offset + self.owned :].fill_(-torch.inf)


def block_fields(rows: int, blocks: int, weighted: bool, like: Tensor) -> Stats:
    """Room for the statistics ``[rows, blocks]``: sums in float64, the rest in the dtype of the scratch."""
    fields = [like.new_empty(rows, blocks) for _ in range(1 + weighted)]
    return Stats(fields[0], like.new_empty(rows, blocks, dtype=torch.float64), *fields[1:])


def block_statistics(scratch: Scratch, count: int, rate: Rate, out: Stats, products: Scratch | None = None) -> None:
    """Statistics of every block of the scratch's first ``count`` rows, written to ``out``; the scratch is used up.

    Args:
        scratch: shaped logits, -inf where nothing is owned.
        count: number of rows.
        rate: ``1 / temperature``, a float or float64 ``[rows, 1]``.
        out: as made by `block_fields`.
        products: a second scratch of the same size; needed where ``out.weighted`` is given.
    """
    blocks = scratch.rows(count).view(count, -1, BLOCK)
    torch.amax(blocks, dim=-1, out=out.max)
    exponents_(blocks, out.max.clamp(min=torch.finfo(blocks.dtype).min).unsqueeze(-1), rate)
    if out.weighted is None or products is None:
        out.sum.copy_(_exact_sum(scratch.exp2_into(count, scratch).view_as(blocks)))
        return
    blocks.clamp_(min=FLOOR)
    exponentials = scratch.exp2_into(count, products).view_as(blocks)
    out.sum.copy_(_exact_sum(exponentials))
    torch.sum(exponentials.mul_(blocks), dim=-1, out=out.weighted)
    out.weighted.mul_(LN_2)


def _exact_sum(exponentials: Tensor) -> Tensor:
    """Float64 sums of exponentials of which the largest are 1; those are set to 0 on the way.

    Next to 1, float32 has no room for the small ones: for a token that is almost certain they are all of ``1 - p``,
    which its gradient consists of. So the ones are counted, and the rest is summed alone.

    Args:
        exponentials: ``[.., 1024]`` values in [0, 1], or NaN.

    Returns:
        Float64 ``[..]``.
    """
    whole = exponentials.sum(-1, dtype=exponentials.dtype)
    rest = exponentials.frac_().sum(-1, dtype=exponentials.dtype)
    return (whole - rest).round_().to(torch.float64) + rest


def exponents_(values: Tensor, reference: Tensor, rate: Rate) -> Tensor:
    """Turn logits into base-2 exponents below a reference, in place: ``log2(e) * rate * (values - reference)``.

    The temperature comes after the reference is taken off: before, it would round a large common offset. The base is 2
    because torch's float32 exp is several times slower on CPU than its exp2, and a hundred times slower where results
    are subnormal.

    Args:
        values: ``[rows, ..]`` logits.
        reference: broadcasts against them.
        rate: ``1 / temperature``, a float or float64 ``[rows, 1]``.

    Returns:
        ``values``.
    """
    if isinstance(rate, Tensor):
        factor = (rate * LOG2_E).to(values.dtype)
        return values.sub_(reference).mul_(factor.view(-1, *[1] * (values.dim() - 1)))
    return values.sub_(reference).mul_(rate * LOG2_E)
