"""The merge tree: any way of spreading blocks over owners gives the same bits."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from logparity.ops.tree import BLOCK, Stats, block_count, combine, concatenate, owned_nodes, reduce_blocks
from tests.support.tolerance import assert_same_bits

RATE = 1 / 0.7


def _blocks(values: torch.Tensor, start: int, stop: int) -> Stats:
    parts = []
    for block in range(start // BLOCK, block_count(stop)):
        columns = values[:, max(start, block * BLOCK) : min(stop, (block + 1) * BLOCK)].contiguous()
        top = columns.amax(1, keepdim=True)
        exponents = (columns - top) * RATE
        weights = exponents.exp()
        parts.append(Stats(top, weights.sum(1, keepdim=True), (weights * exponents).sum(1, keepdim=True)))
    return concatenate(parts)


def _through_owners(values: torch.Tensor, edges: list[int]) -> Stats:
    columns, pieces = values.shape[1], []
    for start, stop in pairwise(edges):
        nodes = owned_nodes(start, stop, columns)
        reduced = reduce_blocks(_blocks(values, start, stop), start, stop, columns, RATE)
        assert len(nodes) == reduced.max.shape[1]
        assert len(nodes) <= 2 * block_count(columns).bit_length(), "an owner has few nodes, not one per block"
        pieces += [(node, reduced.sets(slice(i, i + 1))) for i, node in enumerate(nodes)]
    return combine(pieces, columns, RATE)


@given(st.data())
def test_owners_on_block_edges_give_the_bits_of_one_owner(data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 9 * BLOCK))
    cuts = data.draw(st.sets(st.integers(1, max(1, block_count(columns) - 1)), max_size=5))
    edges = sorted({0, columns} | {cut * BLOCK for cut in cuts if cut * BLOCK < columns})
    values = torch.randn(2, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(columns)) * 4
    for got, expected in zip(_through_owners(values, edges), _through_owners(values, [0, columns]), strict=True):
        assert_same_bits(got, expected)


@given(st.data())
def test_owners_on_any_edges_give_the_whole(data: st.DataObject) -> None:
    columns = data.draw(st.integers(2, 5 * BLOCK))
    edges = sorted({0, columns} | data.draw(st.sets(st.integers(1, columns - 1), max_size=6)))
    values = torch.randn(2, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(columns)) * 4
    got = _through_owners(values, edges)
    exponents = (values - values.amax(1, keepdim=True)) * RATE
    torch.testing.assert_close(got.sum[:, 0], exponents.exp().sum(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(got.weighted[:, 0], (exponents.exp() * exponents).sum(1), rtol=1e-11, atol=0)
