"""How a result was run leaves no trace in it: bitwise, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from logparity.ops import Support, TokenLogProbs, token_log_probs
from tests.support.logits import hard_rows, random_rows
from tests.support.tolerance import assert_same_bits

Run = tuple[TokenLogProbs, Tensor]


def _run(logits: Tensor, targets: Tensor, **options: object) -> Run:
    """Scores, and the gradient of a weighted sum of all of them; weights belong to targets, not to places."""
    leaf = logits.detach().clone().requires_grad_()
    scores = token_log_probs(leaf, targets, **options)
    weight = torch.sin(targets.double() + 1).float()
    loss = sum((weight * score).sum() for score in scores if score is not None and score.requires_grad)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return scores, gradient


def _assert_same(got: Run, expected: Run) -> None:
    for mine, theirs in zip((*got[0], got[1]), (*expected[0], expected[1]), strict=True):
        if theirs is None:
            assert mine is None
        else:
            assert_same_bits(mine, theirs)


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _supports(targets: Tensor, vocab: int) -> Support:
    return Support.from_lists([{0, vocab // 2, int(t), int(t) * 7 % vocab} for t in targets])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("vocab", [7, 1003, 5000, 32768])
def test_chunk_size_leaves_no_trace(vocab: int, dtype: torch.dtype) -> None:
    logits, targets = hard_rows(vocab, dtype)
    for options in ({}, {"entropy": "grad", "support": _supports(targets, vocab), "temperature": 0.7}):
        expected = _run(logits, targets, **options)
        for chunk_size in (1, 2, 3, 5, 8, 100):
            _assert_same(_run(logits, targets, chunk_size=chunk_size, **options), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [129, 33000, 151936])
@pytest.mark.parametrize("entropy", ["none", "grad"])
@pytest.mark.usefixtures("_threads")
def test_threads_leave_no_trace(vocab: int, entropy: str, dtype: torch.dtype) -> None:
    logits, targets = random_rows(5, vocab, dtype)
    torch.set_num_threads(1)
    expected = _run(logits, targets, entropy=entropy, temperature=0.9)
    for threads in (2, 3, 5, 6):
        torch.set_num_threads(threads)
        for chunk_size in (1, 3, 5):
            _assert_same(_run(logits, targets, entropy=entropy, temperature=0.9, chunk_size=chunk_size), expected)


@given(st.data())
def test_other_rows_leave_no_trace(data: st.DataObject) -> None:
    logits, targets = hard_rows(2500, torch.bfloat16)
    temperature = torch.linspace(0.4, 1.7, 8)
    order = data.draw(st.permutations(range(8)))[: data.draw(st.integers(1, 8))]
    scores, gradient = _run(logits, targets, temperature=temperature, entropy="grad")
    expected = (TokenLogProbs(scores.log_probs[order], scores.entropy[order]), gradient[order])
    got = _run(logits[order], targets[order], temperature=temperature[order], entropy="grad")
    _assert_same(got, expected)


def test_a_number_and_equal_temperatures_per_token_are_the_same() -> None:
    logits, targets = hard_rows(1003, torch.float32)
    for temperature in (1.0, 0.7):
        expected = _run(logits, targets, temperature=temperature, entropy="grad")
        each = torch.full((8,), temperature, dtype=torch.float64)
        _assert_same(_run(logits, targets, temperature=each, entropy="grad"), expected)


def test_entropy_beside_them_leaves_log_probs_as_they_are() -> None:
    logits, targets = hard_rows(5000, torch.bfloat16)
    assert_same_bits(
        token_log_probs(logits, targets, entropy="value").log_probs, token_log_probs(logits, targets).log_probs
    )


@pytest.mark.parametrize("valid", [1, 1023, 1024, 1025, 2999])
def test_padding_columns_leave_no_trace(valid: int) -> None:
    logits, _ = random_rows(4, 3000, torch.float32)
    logits[:, valid:] = torch.tensor([torch.nan, torch.inf, 1e30]).repeat(1000)[: 3000 - valid]
    targets = torch.arange(4) % valid
    scores, gradient = _run(logits, targets, entropy="grad", valid_vocab_size=valid)
    expected, narrow = _run(logits[:, :valid].contiguous(), targets, entropy="grad")
    _assert_same((scores, gradient[:, :valid].contiguous()), (expected, narrow))
    assert not gradient[:, valid:].any()
