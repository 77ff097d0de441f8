"""Context-parallel splits are permutations with known owners; the anchor reads nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logparity.errors import InputError
from logparity.layout.anchor import graph_anchor
from logparity.layout.context_parallel import ContextLayout, ContextSplit

layouts = st.sampled_from(list(ContextLayout))
sizes = st.sampled_from([1, 2, 3, 4])
chunks = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def split_of(counts: list[int], size: int, layout: ContextLayout) -> ContextSplit:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count * 2 * size)
    return ContextSplit(tuple(starts), size, layout)


@settings(deadline=None)
@given(counts=chunks, size=sizes, layout=layouts)
def test_merge_undoes_split(counts: list[int], size: int, layout: ContextLayout) -> None:
    split = split_of(counts, size, layout)
    whole = torch.arange(3 * split.total * 2, dtype=torch.float64).reshape(3, split.total, 2).requires_grad_()
    parts = [split.split(whole, rank, dim=1) for rank in range(size)]
    merged = split.merge(parts, dim=1)
    assert torch.equal(merged, whole)
    assert sorted(torch.cat([split.owned(rank) for rank in range(size)]).tolist()) == list(range(split.total))
    merged.square().sum().backward()
    assert torch.equal(whole.grad, 2 * whole.detach())


@settings(deadline=None)
@given(counts=chunks, size=sizes, layout=layouts, data=st.data())
def test_each_response_token_is_scored_on_one_rank(
    counts: list[int], size: int, layout: ContextLayout, data: st.DataObject
) -> None:
    split = split_of(counts, size, layout)
    chosen = data.draw(st.lists(st.integers(0, split.total - 1), unique=True)) if split.total else []
    rows = torch.tensor(chosen, dtype=torch.int64)
    names = torch.arange(split.total)
    seen = []
    for rank in range(size):
        picked, local = split.local_rows(rows, rank)
        assert torch.equal(split.split(names, rank)[local], rows[picked])
        assert picked.tolist() == sorted(picked.tolist())
        seen += picked.tolist()
    assert sorted(seen) == list(range(len(chosen)))


def test_zigzag_owns_chunks_from_both_ends() -> None:
    split = ContextSplit((0, 8, 16), 2, ContextLayout.ZIGZAG)
    assert split.owned(0).tolist() == [0, 1, 6, 7, 8, 9, 14, 15]
    assert split.owned(1).tolist() == [2, 3, 4, 5, 10, 11, 12, 13]
    contiguous = ContextSplit((0, 8, 16), 2, ContextLayout.CONTIGUOUS)
    assert contiguous.owned(1).tolist() == list(range(8, 16))


def test_a_rank_may_own_no_response_token() -> None:
    for layout, rows in ((ContextLayout.CONTIGUOUS, [13, 14]), (ContextLayout.ZIGZAG, [4, 5])):
        picked, local = ContextSplit((0, 16), 2, layout).local_rows(torch.tensor(rows), 0)
        assert picked.shape == local.shape == (0,)


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match=r"sequence 1: expected a multiple of 4.*got 6.*Pad to 8"):
        ContextSplit((0, 4, 10), 2)
    with pytest.raises(InputError, match="the packed row: expected a multiple of 2"):
        ContextSplit((0, 5), 2, ContextLayout.CONTIGUOUS)
    with pytest.raises(InputError, match="size"):
        ContextSplit((0, 4), 0)
    split = ContextSplit((0, 8), 2)
    with pytest.raises(InputError, match="rank: expected 0 to 1, got 2"):
        split.owned(2)
    with pytest.raises(InputError, match="parts: expected 2"):
        split.merge([torch.zeros(4)])
    with pytest.raises(InputError, match="dimension 0: expected 4 tokens"):
        split.merge([torch.zeros(4), torch.zeros(5)])
    with pytest.raises(InputError, match="dimension 1: expected 8 tokens"):
        split.split(torch.zeros(2, 9), 0, dim=1)


def test_the_common_anchor_is_nan_in_fp16_and_ours_is_zero() -> None:
    logits = torch.full((4, 50_000), 6e4, dtype=torch.float16).requires_grad_()
    assert (0 * logits.sum()).isnan()
    anchor = graph_anchor(logits)
    assert anchor.dtype == torch.float32
    assert anchor.item() == 0
    anchor.backward()
    assert logits.grad.dtype == torch.float16
    assert logits.grad.shape == logits.shape
    assert not logits.grad.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_the_anchor_does_not_look_at_what_it_anchors(value: float) -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    logits = torch.full((5, 3), value) @ weight
    (graph_anchor(logits) + 0.0).backward(retain_graph=True)
    assert torch.autograd.grad(graph_anchor(logits), logits)[0].tolist() == [[0.0, 0.0]] * 5


def test_the_anchor_costs_no_pass() -> None:
    """A tensor that no machine could read through or hold a gradient for."""
    logits = torch.zeros((), requires_grad=True).expand(10**9, 10**6)
    anchor = graph_anchor(logits)
    (gradient,) = torch.autograd.grad(anchor, logits)
    assert gradient.shape == logits.shape
    assert gradient.untyped_storage().nbytes() <= 8
