"""Packed rows, padded rows, and the shapes of per-token values: every token is predicted from right before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logparity.errors import InputError
from logparity.layout.packed import pack_sequences
from logparity.layout.padded import pad_sequences
from logparity.layout.responses import Responses
from logparity.layout.rows import bshd_rows, rows_from_starts
from logparity.ops import token_log_probs

token = st.integers(0, 999)
sequence = st.tuples(st.lists(token, min_size=1, max_size=9), st.lists(st.tuples(token, st.booleans()), max_size=9))
batches = st.lists(sequence, min_size=1, max_size=6)


def arrays(batch: list) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    prompts = [np.array(prompt, dtype=np.int64) for prompt, _ in batch]
    responses = [np.array([t for t, _ in response], dtype=np.int64) for _, response in batch]
    return prompts, responses, [np.array([w for _, w in response], dtype=bool) for _, response in batch]


@settings(deadline=None)
@given(batch=batches, multiple=st.integers(1, 8))
def test_packing_predicts_each_token_from_the_row_before_it(batch: list, multiple: int) -> None:
    prompts, responses, wanted = arrays(batch)
    packed = pack_sequences(prompts, responses, wanted=wanted, multiple=multiple, pad_id=-7)
    ids, starts = packed.input_ids[0].numpy(), packed.cu_seqlens.numpy()
    rows, owners = packed.responses.rows.numpy(), packed.responses.sequence_ids.numpy()
    assert packed.cu_seqlens.dtype == torch.int32
    assert starts[-1] == len(ids) == packed.position_ids.shape[1]
    assert (np.diff(starts) % multiple == 0).all()
    assert packed.max_length == np.diff(starts).max()
    assert ids[rows + 1].tolist() == packed.targets.tolist()
    assert ((rows >= starts[owners]) & (rows + 1 < starts[owners + 1])).all()  # never across a border
    expected = [(b, j) for b, keep in enumerate(wanted) for j in np.flatnonzero(keep)]
    assert list(zip(owners.tolist(), packed.responses.positions.tolist(), strict=True)) == expected
    for start, stop, length, prompt, response in zip(
        starts[:-1], starts[1:], packed.lengths, prompts, responses, strict=True
    ):
        assert ids[start:stop].tolist() == [*prompt, *response] + [-7] * (stop - start - length)
        assert packed.position_ids[0, start:stop].tolist() == list(range(stop - start))


@settings(deadline=None)
@given(batch=batches, width=st.integers(9, 12))
def test_every_layout_scores_the_same_tokens(batch: list, width: int) -> None:
    """Logits that name the sequence and position they stand at give equal scores in every layout, bit by bit."""
    prompts, responses, wanted = arrays(batch)
    table = torch.randn(6, 40, 31, generator=torch.Generator().manual_seed(0))
    packed = pack_sequences(prompts, responses, wanted=wanted, multiple=4)
    padded = pad_sequences(prompts, responses, wanted=wanted)
    numbers = torch.repeat_interleave(torch.arange(len(prompts)), packed.cu_seqlens.diff().long())
    in_packed = token_log_probs(
        table[numbers, packed.position_ids[0]], packed.targets % 31, rows=packed.responses.rows
    ).log_probs
    grid = table[: len(prompts), : padded.input_ids.shape[1]]
    in_padded = token_log_probs(grid.reshape(-1, 31), padded.targets % 31, rows=padded.rows).log_probs
    # Prompts padded on the left to one width: position p of the sequence stands in column p + width - prompt length.
    shifted = torch.zeros(len(prompts), width + 9, 31)
    for b, prompt in enumerate(prompts):
        shifted[b, width - len(prompt) :] = table[b, : 9 + len(prompt)]
    rows = bshd_rows(width, [len(r) for r in responses], width + 9, wanted=wanted)
    in_bshd = token_log_probs(shifted.reshape(-1, 31), packed.targets % 31, rows=rows.rows).log_probs
    assert torch.equal(in_packed, in_padded)
    assert torch.equal(in_packed, in_bshd)


@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 5), max_size=6), extra=st.integers(0, 3))
def test_flat_list_and_matrix_round_trips(lengths: list[int], extra: int) -> None:
    responses = Responses(tuple(lengths))
    flat = torch.arange(responses.total, dtype=torch.float64).requires_grad_()
    assert responses.from_list(responses.to_list(flat)).tolist() == flat.tolist()
    matrix = responses.to_padded(flat, width=responses.width + extra, fill=float("nan"))
    assert matrix.shape == (len(lengths), responses.width + extra)
    assert int(matrix.isnan().sum()) == matrix.numel() - responses.total
    back = responses.from_padded(matrix)
    assert torch.equal(back, flat)
    assert [len(part) for part in responses.to_list(flat)] == lengths
    assert responses.sequence_ids().tolist() == [b for b, n in enumerate(lengths) for _ in range(n)]
    assert responses.positions().tolist() == [j for n in lengths for j in range(n)]
    back.square().sum().backward()
    assert torch.equal(flat.grad, 2 * flat.detach())  # the padding's NaN stays out of the gradient


def test_bad_input_is_named() -> None:
    one = [np.array([1, 2])]
    with pytest.raises(InputError, match="at least one"):
        pack_sequences([], [])
    with pytest.raises(InputError, match="prompt_length: expected >= 1"):
        pack_sequences([np.zeros(0, dtype=np.int64)], one)
    with pytest.raises(InputError, match="multiple"):
        pack_sequences(one, one, multiple=0)
    with pytest.raises(InputError, match="response_ids: expected 1"):
        pack_sequences(one, [*one, *one])
    with pytest.raises(InputError, match=r"wanted\[0\]: expected 2"):
        pack_sequences(one, one, wanted=[np.array([True])])
    with pytest.raises(InputError, match="as many starts"):
        rows_from_starts([0, 4], [1], [1])
    with pytest.raises(InputError, match="total_width: expected at least 7"):
        bshd_rows(4, [3, 1], 6)
    with pytest.raises(InputError, match="length of response 1"):
        Responses((1, -1))
    two = Responses((2, 1))
    with pytest.raises(InputError, match=r"values\[1\]: expected shape \(1,\), got \(2,\)"):
        two.from_list([torch.zeros(2), torch.zeros(2)])
    with pytest.raises(InputError, match="values: expected 2 tensors"):
        two.from_list([torch.zeros(2)])
    with pytest.raises(InputError, match="flat: expected 3"):
        two.to_list(torch.zeros(4))
    with pytest.raises(InputError, match="width: expected at least 2"):
        two.to_padded(torch.zeros(3), width=1)
    with pytest.raises(InputError, match="matrix: expected 2 rows and at least 2 columns"):
        two.from_padded(torch.zeros(2, 1))


def test_responses_wholly_empty_or_masked_give_no_rows() -> None:
    prompts, empty = [np.array([1, 2]), np.array([3])], np.zeros(0, dtype=np.int64)
    packed = pack_sequences(prompts, [empty, np.array([4, 5])], wanted=[np.zeros(0, bool), np.zeros(2, bool)])
    assert packed.responses.rows.numel() == packed.targets.numel() == 0
    scores = token_log_probs(torch.zeros(5, 7), packed.targets, rows=packed.responses.rows)
    assert scores.log_probs.shape == (0,)
    assert scores.log_probs.dtype == torch.float32
