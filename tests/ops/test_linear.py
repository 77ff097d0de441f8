"""Scores from hidden states against float64 by hand, and against the scores of the logits they stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logparity.ops import Support, linear_token_log_probs, token_log_probs
from tests.support.heads import exact_head, exact_log_probs, random_head

HALVES = [torch.bfloat16, torch.float16]


def with_support(targets: torch.Tensor, vocab: int) -> Support:
    others = torch.randint(vocab, (len(targets), 5), generator=torch.Generator().manual_seed(1)).tolist()
    return Support.from_lists([[max(int(target), 0), *more] for target, more in zip(targets, others, strict=True)])


@pytest.mark.parametrize("vocab", [7, 1003, 9001])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_fp32_tiles_are_as_exact_as_a_plain_fp32_head(vocab: int, dtype: torch.dtype) -> None:
    case = random_head(33, 64, vocab, dtype)
    truth = exact_log_probs(case)
    scores = linear_token_log_probs(case.hidden, case.weight, case.targets, bias=case.bias, logits_dtype=torch.float32)
    assert scores.log_probs.dtype == torch.float32
    error = (scores.log_probs.double() - truth).abs() / truth.abs().clamp(min=1)
    assert error.max() <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("chunk_size", ["auto", 1, 5])
def test_scores_are_bitwise_those_of_the_logits(dtype: torch.dtype, chunk_size: int | str) -> None:
    case = exact_head(17, 9001, dtype)
    options = {"entropy": "value", "support": with_support(case.targets, 9001), "temperature": 0.7}
    made = linear_token_log_probs(case.hidden, case.weight, case.targets, chunk_size=chunk_size, **options)
    given_ = token_log_probs((case.hidden @ case.weight.T).detach(), case.targets, **options)
    for ours, theirs in zip(made, given_, strict=True):
        assert torch.equal(ours, theirs)


OPTIONS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "softcap and scale": {"logit_softcap": 5.0, "logit_scale": 0.7},
    "padding": {"valid_vocab_size": 8500},
    "everything": {"temperature": 1.3, "logit_softcap": 9.0, "logit_scale": 1.5, "valid_vocab_size": 8500},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("chunk_size", ["auto", 4])
def test_every_option_matches_the_float64_reference_forward_and_backward(name: str, chunk_size: int | str) -> None:
    case = random_head(11, 24, 9001)
    case.targets = case.targets % 8500
    case.targets[3] = -100
    options = OPTIONS[name] | {"entropy": "grad", "support": with_support(case.targets, 8500), "bias": case.bias}
    results = {}
    for impl in ("reference", "chunked"):
        scores = linear_token_log_probs(
            case.hidden, case.weight, case.targets, impl=impl, chunk_size=chunk_size, **options
        )
        results[impl] = [*scores, *torch.autograd.grad(scores, case.leaves, list(case.upstream))]
    for ours, truth in zip(results["chunked"], results["reference"], strict=True):
        assert (ours - truth).abs().max() <= 5e-6 * truth.abs().max().clamp(min=1)  # fp32 sums of 9,001 terms


def test_one_temperature_per_token() -> None:
    case = random_head(6, 16, 5000)
    case.hidden = case.hidden.detach()
    case.weight = case.weight.detach()
    warm = torch.tensor([0.4, 0.7, 1.0, 1.3, 1.7, 2.0])
    together = linear_token_log_probs(case.hidden, case.weight, case.targets, temperature=warm).log_probs
    for row, each in enumerate(warm.tolist()):
        alone = linear_token_log_probs(
            case.hidden[row : row + 1], case.weight, case.targets[row : row + 1], temperature=each
        )
        assert together[row] == pytest.approx(float(alone.log_probs), abs=1e-5)


@given(tokens=st.integers(1, 40), vocab=st.sampled_from([3, 1024, 5000]), chunk=st.integers(1, 45))
@settings(max_examples=15, deadline=None)
def test_a_row_alone_or_among_others_scores_the_same(tokens: int, vocab: int, chunk: int) -> None:
    case = random_head(tokens, 8, vocab, seed=tokens)
    together = linear_token_log_probs(case.hidden, case.weight, case.targets, entropy="value", chunk_size=chunk)
    row = tokens // 2
    alone = linear_token_log_probs(
        case.hidden[row : row + 1], case.weight, case.targets[row : row + 1], entropy="value"
    )
    assert (together.log_probs[row] - alone.log_probs).abs() <= 1e-5
    assert (together.entropy[row] - alone.entropy).abs() <= 1e-5


def test_rows_leading_axes_and_ignored_targets() -> None:
    case = random_head(12, 8, 5000)
    whole = linear_token_log_probs(case.hidden, case.weight, case.targets).log_probs
    batch = linear_token_log_probs(case.hidden.view(3, 4, 8), case.weight, case.targets.view(3, 4)).log_probs
    assert batch.shape == (3, 4)
    assert torch.allclose(batch.view(-1), whole, atol=1e-6)
    rows = torch.tensor([7, 2, 11])
    some = linear_token_log_probs(case.hidden, case.weight, case.targets[rows], rows=rows).log_probs
    assert torch.allclose(some, whole[rows], atol=1e-6)
    ignored = case.targets.clone()
    ignored[5] = -100
    rest = linear_token_log_probs(case.hidden, case.weight, ignored, entropy="value")
    assert rest.log_probs[5] == 0
    assert rest.entropy[5] == 0
    assert torch.allclose(rest.log_probs[6:], whole[6:], atol=1e-6)


def test_rows_that_nobody_asks_for_are_not_even_multiplied() -> None:
    case = random_head(6, 8, 5000)
    with torch.no_grad():
        case.hidden[4] = torch.nan
    targets = case.targets.clone()
    targets[4] = -100
    scores = linear_token_log_probs(case.hidden, case.weight, targets, bias=case.bias)
    gradients = torch.autograd.grad(scores.log_probs.sum(), case.leaves)
    assert all(each.isfinite().all() for each in (scores.log_probs, *gradients))
    assert (gradients[0][4] == 0).all()


def test_a_row_that_is_not_finite_scores_nan_and_only_that_row() -> None:
    case = random_head(4, 8, 5000)
    with torch.no_grad():
        case.hidden[1] = torch.nan
    scores = linear_token_log_probs(case.hidden, case.weight, case.targets, entropy="value")
    assert scores.log_probs.isnan().tolist() == [False, True, False, False]
    assert scores.entropy.isnan().tolist() == [False, True, False, False]


def test_no_tokens_give_empty_float32_scores_and_zero_gradients() -> None:
    case = random_head(4, 8, 5000, torch.bfloat16)
    hidden = case.hidden.detach()[:0].requires_grad_()
    scores = linear_token_log_probs(hidden, case.weight, case.targets[:0], entropy="grad")
    assert scores.log_probs.dtype == torch.float32
    assert scores.log_probs.shape == (0,)
    by_hidden, by_weight = torch.autograd.grad(
        scores.log_probs.sum() + scores.entropy.sum(), [hidden, case.weight], allow_unused=True
    )
    assert by_hidden is None or by_hidden.shape == (0, 8)
    assert by_weight is None or not by_weight.any()


def test_inputs_stay_as_they_are() -> None:
    case = random_head(9, 8, 5000, torch.bfloat16)
    before = [each.detach().clone() for each in case.leaves]
    scores = linear_token_log_probs(case.hidden, case.weight, case.targets, bias=case.bias, entropy="grad")
    torch.autograd.grad(scores.log_probs.sum() + scores.entropy.sum(), case.leaves)
    assert all(torch.equal(now, then) for now, then in zip(case.leaves, before, strict=True))


def test_weight_that_is_a_view_gives_the_same() -> None:
    case = random_head(9, 8, 5000)
    other = replace(case, weight=case.weight.detach().T.contiguous().T, hidden=case.hidden.detach().T.contiguous().T)
    assert not other.weight.is_contiguous()
    ours = linear_token_log_probs(other.hidden, other.weight, case.targets).log_probs
    assert torch.allclose(ours, linear_token_log_probs(case.hidden, case.weight, case.targets).log_probs, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 3000.0])
def test_a_scale_costs_nothing_at_a_large_common_offset(offset: float) -> None:
    case = random_head(32, 8, 1003)
    bias = torch.full((1003,), offset)
    logits = case.hidden.detach() @ case.weight.detach().T + bias  # the float32 numbers that are to be scored
    eye, table = torch.eye(32), logits.T.contiguous()  # as a head whose products are exact
    got = linear_token_log_probs(eye, table, case.targets, logit_scale=0.1).log_probs
    exact = torch.log_softmax(logits.double() * 0.1, -1).gather(1, case.targets[:, None]).squeeze(1)
    assert (got - exact).abs().max() <= 1e-6
