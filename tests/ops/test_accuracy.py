"""Every implementation against float64 by hand, within the numbers contract."""

from __future__ import annotations

import pytest
import torch

from logparity.ops import token_log_probs
from tests.support.logits import VOCABULARIES, hard_rows, truth
from tests.support.tolerance import assert_entropy_close, assert_gradients_close, assert_log_probs_close

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
TEMPERATURES = torch.linspace(0.4, 1.7, 8, dtype=torch.float64)
G = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 1.5, 1.0, -0.25])
H = torch.tensor([0.5, 1.0, -0.5, 0.25, 1.0, -1.0, 2.0, 0.0])


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_scores_and_gradients_are_those_of_float64(vocab: int, dtype: torch.dtype, impl: str) -> None:
    logits, targets = hard_rows(vocab, dtype)
    for temperature in (1.0, TEMPERATURES):
        exact = truth(logits, targets, temperature, G, H)
        leaf = logits.clone().requires_grad_()
        got = token_log_probs(leaf, targets, temperature=temperature, entropy="grad", impl=impl)
        assert got.log_probs.dtype == got.entropy.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
        assert_log_probs_close(got.log_probs, exact.log_probs)
        assert_entropy_close(got.entropy, exact.entropy)
        (G * got.log_probs + H * got.entropy).sum().backward()
        assert_gradients_close(leaf.grad, exact.gradient)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", [7, 1003, 32768])
def test_log_prob_gradient_alone_is_that_of_float64(vocab: int, dtype: torch.dtype) -> None:
    logits, targets = hard_rows(vocab, dtype, seed=1)
    exact = truth(logits, targets, 0.7, G, torch.zeros(8))
    leaf = logits.clone().requires_grad_()
    (G * token_log_probs(leaf, targets, temperature=0.7).log_probs).sum().backward()
    assert_gradients_close(leaf.grad, exact.gradient)


def test_model_precision_logits_score_like_their_fp32_copy() -> None:
    logits, targets = hard_rows(32768, torch.bfloat16)
    wide = logits.float().requires_grad_()
    narrow = logits.clone().requires_grad_()
    scores = [token_log_probs(leaf, targets).log_probs for leaf in (narrow, wide)]
    assert (scores[0] - scores[1]).abs().max() <= 9.6e-7
    for score in scores:
        (G * score).sum().backward()
    assert torch.equal(narrow.grad, wide.grad.bfloat16())


def test_a_certain_token_keeps_its_small_gradient() -> None:
    """1 - p at the target is far below float32 resolution next to 1; it must not come out as 0."""
    logits = torch.zeros(1, 1003)
    logits[0, 5] = 30.0
    leaf = logits.requires_grad_()
    token_log_probs(leaf, torch.tensor([5])).log_probs.sum().backward()
    exact = 1002 * torch.exp(torch.tensor(-30.0, dtype=torch.float64))
    assert leaf.grad[0, 5].item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("offset", [3000.0, 1e4])
def test_temperature_does_not_round_a_common_offset(offset: float) -> None:
    logits, targets = hard_rows(1003, torch.float32)
    shifted = (logits[[0, 1, 7]] + offset).contiguous()
    exact = truth(shifted, targets[[0, 1, 7]], 0.7, torch.ones(3), torch.zeros(3))
    assert_log_probs_close(token_log_probs(shifted, targets[[0, 1, 7]], temperature=0.7).log_probs, exact.log_probs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_softcap_and_scale_come_before_temperature(dtype: torch.dtype) -> None:
    logits, targets = hard_rows(1003, dtype, seed=2)
    rows, targets = [0, 1, 2, 4, 6, 7], targets[[0, 1, 2, 4, 6, 7]]
    leaf = logits[rows].clone().requires_grad_()
    plain = leaf.detach().double().requires_grad_()
    shaped = 0.5 * 30.0 * torch.tanh(plain / 30.0)
    exact = torch.log_softmax(shaped / 0.8, -1).gather(1, targets[:, None])[:, 0]
    got = token_log_probs(leaf, targets, temperature=0.8, logit_softcap=30.0, logit_scale=0.5).log_probs
    assert_log_probs_close(got, exact.detach())
    got.sum().backward()
    exact.sum().backward()
    assert_gradients_close(leaf.grad, plain.grad)


@pytest.mark.parametrize("offset", [0.0, 3000.0, -3000.0])
@pytest.mark.parametrize("vocab", [2, 7, 1003])
@pytest.mark.parametrize("scale", [0.1, 1.7])
def test_a_scale_is_as_exact_as_the_temperature_that_it_stands_for(vocab: int, offset: float, scale: float) -> None:
    """At a large common offset, scaling before the maximum is taken off would cost several units in 1e-6."""
    draw = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(64, vocab, generator=draw) * 3 + offset).requires_grad_()
    targets = torch.randint(vocab, (64,), generator=draw)
    results = []
    for options in ({"logit_scale": scale}, {"temperature": 1 / scale}):
        scores = token_log_probs(logits, targets, entropy="grad", **options)
        gradient = torch.autograd.grad(scores.log_probs.sum() + scores.entropy.sum(), logits)[0]
        results.append((scores.log_probs.detach(), scores.entropy.detach(), gradient))
    exact = truth(logits, targets, 1 / scale, torch.ones(64), torch.ones(64))
    for log_probs, entropy, gradient in results:
        assert (log_probs - exact.log_probs).abs().max() <= 2e-7 * max(1.0, float(exact.log_probs.abs().max()))
        assert_entropy_close(entropy, exact.entropy)
        assert_gradients_close(gradient, exact.gradient)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
