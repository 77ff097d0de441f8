"""Sampling supports: renormalised log-probs beside the full-vocabulary ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from logparity.errors import SupportError
from logparity.ops import Support, token_log_probs
from tests.support.logits import hard_rows, random_rows
from tests.support.tolerance import assert_gradients_close, assert_log_probs_close, assert_same_bits

IMPLS = ["reference", "chunked"]


def _supported(logits: Tensor, targets: Tensor, sets: list[list[int]], temperature: Tensor | float) -> Tensor:
    """Float64 by hand: log-softmax over the listed columns only."""
    rows = []
    for row, (target, ids) in enumerate(zip(targets.tolist(), sets, strict=True)):
        chosen = sorted(set(ids))
        tau = temperature[row] if isinstance(temperature, Tensor) else temperature
        rows.append(torch.log_softmax(logits[row, chosen].double() / tau, -1)[chosen.index(target)])
    return torch.stack(rows)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [7, 5000])
def test_both_scores_and_their_joint_gradient(vocab: int, dtype: torch.dtype, impl: str) -> None:
    logits, targets = hard_rows(vocab, dtype)
    temperature = torch.linspace(0.4, 1.7, 8)
    draw = torch.Generator().manual_seed(3)
    sets = [[*torch.randint(vocab, (20,), generator=draw).tolist(), int(t)] for t in targets]
    leaf, plain = logits.clone().requires_grad_(), logits.double().requires_grad_()
    got = token_log_probs(leaf, targets, support=Support.from_lists(sets), temperature=temperature, impl=impl)
    exact = _supported(plain, targets, sets, temperature)
    full = torch.log_softmax(plain / temperature[:, None], -1).gather(1, targets[:, None])[:, 0]
    assert_log_probs_close(got.support_log_probs.detach(), exact.detach())
    assert_log_probs_close(got.log_probs.detach(), full.detach())
    weight = torch.linspace(-1, 2, 8)
    (weight * got.support_log_probs + got.log_probs).sum().backward()
    (weight.double() * exact + full).sum().backward()
    assert_gradients_close(leaf.grad, plain.grad)


@given(st.lists(st.integers(0, 128), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_order_and_repetition_leave_no_trace(ids: list[int], random: object) -> None:
    logits, _ = random_rows(1, 129, torch.float32)
    mixed = ids + ids[::2]
    random.shuffle(mixed)
    scores = [
        token_log_probs(logits, torch.tensor([ids[0]]), support=Support.from_lists([each])).support_log_probs
        for each in (sorted(set(ids)), mixed)
    ]
    assert_same_bits(scores[1], scores[0])


def test_the_whole_vocabulary_as_support_gives_the_full_score() -> None:
    logits, targets = hard_rows(1003, torch.float32)
    scores = token_log_probs(logits, targets, support=Support.from_lists([range(1003)] * 8))
    assert_log_probs_close(scores.support_log_probs, scores.log_probs.double())


def test_a_lone_id_has_probability_one_and_no_gradient() -> None:
    logits, targets = random_rows(2, 129, torch.float32)
    leaf = logits.requires_grad_()
    scores = token_log_probs(leaf, targets, support=Support.from_lists([[int(t)] for t in targets]))
    assert torch.equal(scores.support_log_probs, torch.zeros(2))
    scores.support_log_probs.sum().backward()
    assert torch.equal(leaf.grad, torch.zeros(2, 129))


def test_entropy_stays_that_of_the_full_vocabulary() -> None:
    logits, targets = random_rows(2, 129, torch.float32)
    support = Support.from_lists([[int(t), 0] for t in targets])
    with_support = token_log_probs(logits, targets, support=support, entropy="value")
    assert_same_bits(with_support.entropy, token_log_probs(logits, targets, entropy="value").entropy)


def test_rows_without_a_support_can_be_ignored() -> None:
    logits, targets = random_rows(3, 129, torch.float32)
    targets[1] = -100
    support = Support.from_lists([[int(targets[0]), 4], [], [int(targets[2])]])
    scores = token_log_probs(logits, targets, support=support)
    assert scores.support_log_probs[1] == 0
    assert scores.support_log_probs[[0, 2]].isfinite().all()


def test_with_rows_the_support_belongs_to_the_rows_listed() -> None:
    logits, _ = random_rows(4, 129, torch.float32)
    rows, targets, support = torch.tensor([2, 0]), torch.tensor([5, 6]), Support.from_lists([[5, 9], [1, 6]])
    got = token_log_probs(logits, targets, rows=rows, support=support).support_log_probs
    assert_same_bits(got, token_log_probs(logits[rows], targets, support=support).support_log_probs)


def test_csr_and_lists_are_the_same() -> None:
    support = Support.from_lists([[3, 1], [], [2]])
    assert support.offsets.tolist() == [0, 2, 2, 3]
    assert support.ids.tolist() == [3, 1, 2]
    assert len(support) == 3
    assert len(Support.from_lists([])) == 0


@pytest.mark.parametrize(
    ("offsets", "ids"),
    [([0, 2], [1]), ([1, 1], [1]), ([0, 2, 1, 2], [1, 2]), ([], [1])],
)
def test_malformed_offsets_are_refused(offsets: list[int], ids: list[int]) -> None:
    with pytest.raises(SupportError, match=r"run from 0 up to"):
        Support(torch.tensor(offsets, dtype=torch.int64), torch.tensor(ids))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([[1, 5], []], r"support of row 1: expected at least one id, got none \(target 6\)"),
        ([[5], [5, 7]], r"support of row 1: expected its target 6 among its 2 ids, got \[5, 7\]"),
        ([[5, 129], [6]], r"support of row 0: expected ids in \[0, 129\), got 129"),
        ([[5, -1], [6]], r"support of row 0: expected ids in \[0, 129\), got -1"),
    ],
)
def test_supports_that_cannot_be_name_row_and_id(sets: list[list[int]], message: str) -> None:
    with pytest.raises(SupportError, match=message):
        token_log_probs(torch.randn(2, 129), torch.tensor([5, 6]), support=Support.from_lists(sets))
