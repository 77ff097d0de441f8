"""True on-policy scores: the bits of an engine that divides and takes a log-softmax in one dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from logparity.errors import InputError
from logparity.ops import on_policy_token_log_probs, token_log_probs
from tests.support.logits import hard_rows, random_rows
from tests.support.tolerance import assert_same_bits


def _engine(logits: Tensor, targets: Tensor, temperature: float | Tensor, dtype: torch.dtype) -> Tensor:
    """What an engine does with its logits, all rows at once."""
    values = logits.to(dtype)
    if isinstance(temperature, Tensor):
        values.div_(temperature[:, None])
    else:
        values = values / temperature
    return torch.log_softmax(values, -1).gather(1, targets[:, None])[:, 0].float()


@pytest.mark.parametrize("compute", [None, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7, torch.linspace(0.4, 1.7, 8)], ids=["1", "0.7", "each"])
@pytest.mark.parametrize("chunk_size", ["auto", 1, 3])
def test_it_repeats_the_engine_bit_by_bit(compute: torch.dtype, temperature: float | Tensor, chunk_size: int) -> None:
    logits, targets = hard_rows(5000, torch.bfloat16)
    expected = _engine(logits.clone(), targets, temperature, compute or torch.bfloat16)
    before = logits.clone()
    got = on_policy_token_log_probs(
        logits, targets, temperature=temperature, compute_dtype=compute, chunk_size=chunk_size
    )
    assert_same_bits(got.log_probs, expected)
    assert_same_bits(logits, before)


def test_padding_is_dropped_before_the_log_softmax() -> None:
    logits, targets = random_rows(4, 1003, torch.bfloat16)
    targets %= 1000
    got = on_policy_token_log_probs(logits, targets, valid_vocab_size=1000, temperature=0.7).log_probs
    assert_same_bits(got, _engine(logits[:, :1000], targets, 0.7, torch.bfloat16))


def test_its_gradient_is_the_exact_one() -> None:
    logits, targets = hard_rows(2500, torch.bfloat16)
    gradients = []
    for function in (on_policy_token_log_probs, token_log_probs):
        leaf = logits.clone().requires_grad_()
        scores = function(leaf, targets, temperature=0.7, entropy="grad", chunk_size=3)
        (scores.log_probs.sum() + 2 * scores.entropy.sum()).backward()
        gradients.append(leaf.grad)
    assert_same_bits(gradients[0], gradients[1])


def test_ignored_targets_and_shapes() -> None:
    logits, _ = random_rows(6, 129, torch.float32)
    targets = torch.tensor([[1, -100, 3], [4, 5, -100]])
    leaf = logits.view(2, 3, 129).requires_grad_()
    scores = on_policy_token_log_probs(leaf, targets, entropy="value")
    assert scores.log_probs.shape == scores.entropy.shape == (2, 3)
    assert not scores.entropy.requires_grad
    assert scores.log_probs[0, 1] == scores.log_probs[1, 2] == 0
    scores.log_probs.sum().backward()
    assert not leaf.grad[0, 1].any()
    assert leaf.grad[0, 0].any()
    empty = on_policy_token_log_probs(torch.zeros(0, 129).bfloat16(), torch.zeros(0, dtype=torch.int64))
    assert empty.log_probs.dtype == torch.float32


def test_it_owns_the_temperature() -> None:
    with pytest.raises(InputError, match="temperature"):
        on_policy_token_log_probs(torch.randn(2, 129), torch.tensor([1, 2]), temperature=0.0)


def test_without_gradient_there_is_no_graph() -> None:
    logits, targets = random_rows(3, 129, torch.float32)
    with torch.inference_mode():
        scores = on_policy_token_log_probs(logits.clone().requires_grad_(), targets, entropy="grad")
    assert not scores.log_probs.requires_grad
    assert_same_bits(scores.log_probs, _engine(logits, targets, 1.0, torch.float32))
