"""The rules a caller relies on: purity, shapes, rows, ignored targets, non-finite rows, empty input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from logparity.ops import choose, on_policy_token_log_probs, token_log_probs
from tests.support.logits import hard_rows, random_rows
from tests.support.tolerance import assert_log_probs_close, assert_same_bits

IMPLS = ["reference", "chunked"]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("entropy", ["none", "value", "grad"])
def test_logits_are_left_as_they_are(impl: str, entropy: str) -> None:
    logits, targets = hard_rows(1003, torch.bfloat16)
    leaf = logits.clone().requires_grad_()
    version = leaf._version
    scores = token_log_probs(leaf, targets, entropy=entropy, temperature=0.7, logit_softcap=30.0, impl=impl)
    scores.log_probs.sum().backward()
    assert_same_bits(leaf.detach(), logits)
    assert leaf._version == version


def test_backward_keeps_the_logits_and_some_numbers_per_token() -> None:
    logits, targets = random_rows(6, 5000, torch.bfloat16)
    leaf = logits.requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        token_log_probs(leaf, targets, entropy="grad")
    others = [tensor for tensor in kept if tensor.data_ptr() != leaf.data_ptr()]
    assert len(kept) - len(others) == 1
    assert sum(tensor.untyped_storage().nbytes() for tensor in others) <= 64 * 6


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_no_tokens_give_empty_scores_and_a_zero_gradient(dtype: torch.dtype, impl: str) -> None:
    leaf = torch.zeros(0, 129, dtype=dtype, requires_grad=True)
    scores = token_log_probs(leaf, torch.zeros(0, dtype=torch.int64), entropy="grad", impl=impl)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert scores.log_probs.shape == scores.entropy.shape == (0,)
    assert scores.log_probs.dtype == scores.entropy.dtype == wide
    (scores.log_probs.sum() + scores.entropy.sum()).backward()
    assert leaf.grad.shape == leaf.shape
    assert leaf.grad.dtype == dtype


def test_no_rows_wanted_give_a_zero_gradient() -> None:
    leaf = torch.randn(3, 129, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    token_log_probs(leaf, none, rows=none).log_probs.sum().backward()
    assert torch.equal(leaf.grad, torch.zeros(3, 129))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_non_finite_rows_score_nan_and_spoil_no_other_row(dtype: torch.dtype, impl: str) -> None:
    logits, targets = random_rows(6, 2500, dtype)
    logits[1, 7] = NAN
    logits[2, 2400] = INF
    logits[3] = -INF
    logits[4, targets[4]] = -INF
    leaf = logits.requires_grad_()
    scores = token_log_probs(leaf, targets, entropy="grad", impl=impl)
    assert scores.log_probs.isnan().tolist() == [False, True, True, True, False, False]
    assert scores.entropy.isnan().tolist() == [False, True, True, True, False, False]
    assert scores.log_probs[4] == -INF
    healthy = token_log_probs(logits[[0, 5]].detach(), targets[[0, 5]], impl=impl)
    assert torch.equal(scores.log_probs[[0, 5]], healthy.log_probs)


def test_minus_infinity_is_a_legal_logit() -> None:
    leaf = torch.tensor([[0.0, -INF, 0.0, -INF]], requires_grad=True)
    scores = token_log_probs(leaf, torch.tensor([0]), entropy="grad")
    (scores.log_probs + scores.entropy).sum().backward()
    assert scores.log_probs.item() == pytest.approx(-0.693147, abs=1e-6)
    assert scores.entropy.item() == pytest.approx(0.693147, abs=1e-6)
    torch.testing.assert_close(leaf.grad, torch.tensor([[0.5, 0.0, -0.5, 0.0]]))


@pytest.mark.parametrize("masked", [slice(0, 2048), slice(1024, 5000), slice(0, 4999)])
def test_whole_blocks_at_minus_infinity(masked: slice) -> None:
    logits, targets = random_rows(3, 5000, torch.float32)
    logits[:, masked] = -INF
    kept = [column for column in range(5000) if column not in range(*masked.indices(5000))]
    targets = torch.tensor([kept[-1]] * 3)
    scores = token_log_probs(logits, targets, entropy="value")
    exact = torch.log_softmax(logits[:, kept].double(), -1)
    assert_log_probs_close(scores.log_probs, exact[:, -1])
    torch.testing.assert_close(scores.entropy, -(exact.exp() * exact).sum(-1).float(), rtol=1e-6, atol=1e-6)


def test_a_target_at_minus_infinity_takes_no_part_in_the_entropy() -> None:
    leaf = torch.tensor([[0.0, -INF, 1.0]], requires_grad=True)
    token_log_probs(leaf, torch.tensor([1]), entropy="grad").entropy.sum().backward()
    twin = torch.tensor([[0.0, 1.0]], requires_grad=True)
    token_log_probs(twin, torch.tensor([1]), entropy="grad").entropy.sum().backward()
    torch.testing.assert_close(leaf.grad[:, [0, 2]], twin.grad)
    assert leaf.grad[0, 1] == 0


def test_a_softcap_keeps_masked_columns_masked() -> None:
    logits = torch.tensor([[1.0, -INF, 2.0]])
    capped = token_log_probs(logits, torch.tensor([0]), logit_softcap=5.0).log_probs
    without = token_log_probs(logits[:, [0, 2]], torch.tensor([0]), logit_softcap=5.0).log_probs
    torch.testing.assert_close(capped, without)
    leaf = logits.clone().requires_grad_()
    token_log_probs(leaf, torch.tensor([0]), logit_softcap=5.0, entropy="grad").log_probs.sum().backward()
    assert leaf.grad[0, 1] == 0
    assert leaf.grad.isfinite().all()


def test_a_row_whose_score_nobody_uses_gets_no_gradient_even_if_it_is_nan() -> None:
    logits, targets = random_rows(3, 129, torch.float32)
    logits[1] = NAN
    leaf = logits.requires_grad_()
    scores = token_log_probs(leaf, targets)
    torch.where(torch.tensor([True, False, True]), scores.log_probs, 0.0).sum().backward()
    assert torch.equal(leaf.grad[1], torch.zeros(129))
    assert leaf.grad[[0, 2]].isfinite().all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("device", DEVICES)
def test_ignored_targets_score_zero_and_get_no_gradient(impl: str, device: str) -> None:
    logits, targets = (each.to(device) for each in hard_rows(1003, torch.float32))
    logits[2] = NAN
    targets[[2, 5]] = -100
    leaf, temperature = logits.requires_grad_(), torch.linspace(0.5, 1, 8, device=device)
    scores = token_log_probs(leaf, targets, entropy="grad", temperature=temperature, impl=impl)
    assert scores.log_probs[[2, 5]].tolist() == [0.0, 0.0]
    assert scores.entropy[[2, 5]].tolist() == [0.0, 0.0]
    (scores.log_probs.sum() + scores.entropy.sum()).backward()
    assert not leaf.grad[[2, 5]].any()
    assert (leaf.grad[[0, 1, 3, 4, 6, 7]] != 0).any(1).all()


def test_another_ignore_index() -> None:
    logits, _ = random_rows(2, 129, torch.float32)
    scores = token_log_probs(logits, torch.tensor([0, 3]), ignore_index=0)
    assert scores.log_probs[0] == 0
    assert scores.log_probs[1] < 0


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("wanted", [[4, 1, 6], [2, 3, 4], [7], list(range(8))])
def test_rows_are_scored_where_they_are_and_others_get_zero(wanted: list[int], impl: str) -> None:
    logits, targets = hard_rows(1003, torch.float32)
    leaf, index = logits.clone().requires_grad_(), torch.tensor(wanted)
    scores = token_log_probs(leaf, targets[index], rows=index, temperature=torch.arange(1.0, 1 + len(index)), impl=impl)
    part = logits[index].clone().requires_grad_()
    alone = token_log_probs(part, targets[index], temperature=torch.arange(1.0, 1 + len(index)), impl=impl)
    assert_same_bits(scores.log_probs.detach(), alone.log_probs.detach())
    scores.log_probs.sum().backward()
    alone.log_probs.sum().backward()
    expected = torch.zeros_like(logits)
    expected[index] = part.grad
    assert torch.equal(leaf.grad, expected)


def test_a_single_row_without_leading_axes() -> None:
    logits, targets = random_rows(1, 129, torch.float32)
    expected = token_log_probs(logits, targets).log_probs[0]
    for function in (token_log_probs, on_policy_token_log_probs):
        scores = function(logits[0].requires_grad_(), targets[0])
        assert scores.log_probs.shape == ()
        torch.testing.assert_close(scores.log_probs.detach(), expected)


def test_rows_index_the_flattened_leading_axes() -> None:
    logits, _ = random_rows(6, 129, torch.float32)
    scores = token_log_probs(logits.view(2, 3, 129), torch.tensor([5, 9]), rows=[4, 0])
    assert torch.equal(scores.log_probs, token_log_probs(logits[[4, 0]], torch.tensor([5, 9])).log_probs)


@pytest.mark.parametrize("impl", IMPLS)
def test_leading_axes_and_any_memory_layout(impl: str) -> None:
    plain, targets = random_rows(12, 1003, torch.bfloat16)
    expected = token_log_probs(plain, targets, entropy="value").log_probs
    wide = torch.zeros(3, 5, 1003, dtype=torch.bfloat16)
    wide[:, :4] = plain.view(3, 4, 1003)
    layouts = {
        "three axes": plain.view(3, 4, 1003),
        "shifted, as in logits[:, :-1]": wide[:, :-1],
        "vocabulary first": plain.t().contiguous().t().view(3, 4, 1003),
        "every other column": torch.stack([plain, plain], -1).flatten(1)[:, ::2].view(3, 4, 1003),
    }
    for name, logits in layouts.items():
        leaf = logits.detach().requires_grad_()
        scores = token_log_probs(leaf, targets.view(3, 4), impl=impl)
        assert scores.log_probs.shape == (3, 4), name
        assert_log_probs_close(scores.log_probs.detach().flatten(), expected.double())
        scores.log_probs.sum().backward()
        assert leaf.grad.shape == logits.shape
        assert_log_probs_close(leaf.grad.float().sum(-1).flatten() * 1e-3, torch.zeros(12).double())


def test_a_shifted_view_is_not_copied_for_its_gradient_to_be_right() -> None:
    whole = torch.randn(2, 4, 129, requires_grad=True)
    targets = torch.randint(129, (2, 3))
    token_log_probs(whole[:, :-1], targets).log_probs.sum().backward()
    twin = whole.detach().clone().requires_grad_()
    torch.log_softmax(twin[:, :-1], -1).gather(-1, targets[..., None]).sum().backward()
    torch.testing.assert_close(whole.grad, twin.grad, rtol=0, atol=1e-6)


def test_integer_targets_of_any_width() -> None:
    logits, targets = random_rows(4, 129, torch.float32)
    expected = token_log_probs(logits, targets).log_probs
    assert torch.equal(token_log_probs(logits, targets.int()).log_probs, expected)


def test_unchecked_targets_outside_the_vocabulary_score_nan() -> None:
    logits, _ = random_rows(3, 129, torch.float32)
    scores = token_log_probs(logits, torch.tensor([129, -1, 5]), validate=False, valid_vocab_size=100)
    assert scores.log_probs.isnan().tolist() == [True, True, False]


def test_the_choice_of_implementation_explains_itself() -> None:
    choice = choose("auto", device="cpu", dtype=torch.bfloat16)
    assert choice.impl == "chunked"
    assert choice.reason.startswith("cpu, bfloat16")
