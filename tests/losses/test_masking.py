"""Inactive tokens may hold anything: loss, gradients, and metrics keep every bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from logparity.losses import (
    CorrectionConfig,
    Metrics,
    PolicyObjective,
    Sequences,
    TokenTensors,
    ValueObjective,
    ValueTensors,
    count_denominators,
    discounted_returns,
    gae,
    mean_weight_share,
    token_rewards,
    whiten,
)
from tests.support.loss_batches import OBJECTIVES, random_tokens, token_fields

GARBAGE = [float("nan"), float("inf"), float("-inf"), 1e30, -1e30]


def soil(values: Tensor, mask: Tensor, garbage: float) -> Tensor:
    return values.detach().masked_fill(~mask, garbage).requires_grad_(values.requires_grad)


def bits(metrics: Metrics) -> dict[str, tuple[float, float]]:
    return {name: (float(ratio.numerator), float(ratio.denominator)) for name, ratio in metrics.items()}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize("garbage", GARBAGE)
def test_objectives_ignore_what_inactive_tokens_hold(name: str, garbage: float) -> None:
    objective = replace(OBJECTIVES[name], strict=True)
    results = []
    for tokens in (random_tokens(dtype=torch.float32), random_tokens(dtype=torch.float32)):
        if results:
            values = token_fields(tokens)
            del values["mask"], values["sequence_ids"]
            tokens = replace(tokens, **{key: soil(value, tokens.mask, garbage) for key, value in values.items()})
        loss, metrics = objective(tokens, count_denominators([tokens]))
        loss.backward()
        entropy = tokens.entropy.grad if tokens.entropy.grad is not None else torch.zeros(1)
        results.append((loss.item(), tokens.log_probs.grad.tolist(), entropy.tolist(), bits(metrics)))
        assert (tokens.log_probs.grad[~tokens.mask] == 0).all()
    assert results[0] == results[1]
    assert torch.isfinite(torch.tensor(results[0][0]))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_values_advantages_and_weights_ignore_it_too(garbage: float) -> None:
    tokens = random_tokens()
    mask, ids = tokens.mask, tokens.sequence_ids
    clean = [tokens.log_probs.detach(), tokens.old_log_probs, tokens.rollout_log_probs]
    dirty = [soil(value, mask, garbage) for value in clean]
    config = CorrectionConfig(batch_normalise=True)

    def everything(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        values = ValueTensors(a.clone().requires_grad_(), mask, ids, tokens.num_sequences, old_values=b, returns=c)
        loss, _ = ValueObjective(strict=True)(values, count_denominators([tokens]))
        loss.backward()
        share = mean_weight_share(b, c, mask, Sequences.of(tokens), config)
        return [
            loss.detach(),
            values.values.grad,
            torch.as_tensor(share.value()),
            *gae(a, b, mask, ids),
            discounted_returns(a, mask, ids, gamma=0.9),
            whiten(a, mask),
            token_rewards(torch.arange(6.0), mask, ids, kl=b, coefficient=0.1),
        ]

    for kept, soiled in zip(everything(*clean), everything(*dirty), strict=True):
        assert torch.equal(kept, soiled)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize("lengths", [(), (0, 0), (3, 2)])
def test_a_batch_without_active_tokens_is_zero_with_a_gradient_link(name: str, lengths: tuple[int, ...]) -> None:
    tokens = random_tokens(lengths, hole=False)
    tokens = replace(tokens, mask=torch.zeros_like(tokens.mask))
    loss, metrics = OBJECTIVES[name](tokens, count_denominators([tokens]))
    loss.backward()
    assert loss.item() == 0
    assert tokens.log_probs.grad.tolist() == [0.0] * sum(lengths)
    assert all(float(ratio.denominator) == 0 and ratio.value() is None for ratio in metrics.values())


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_nothing_waits_for_the_device(name: str) -> None:
    """Meta tensors have no values: whatever looked at one, as a wait for a GPU does, would raise."""
    tokens = random_tokens(dtype=torch.float32)
    counts = count_denominators([tokens])
    there = {
        key: value.detach().to("meta").requires_grad_(value.requires_grad)
        for key, value in token_fields(tokens).items()
    }
    loss, metrics = OBJECTIVES[name](replace(tokens, **there), counts)
    loss.backward()
    assert loss.shape == ()
    assert all(ratio.numerator.is_meta for ratio in metrics.values())


def test_metrics_are_detached() -> None:
    tokens: TokenTensors = random_tokens()
    for objective in OBJECTIVES.values():
        _, metrics = objective(tokens, count_denominators([tokens]))
        for ratio in metrics.values():
            assert not getattr(ratio.numerator, "requires_grad", False)
            assert not getattr(ratio.denominator, "requires_grad", False)


def test_entropy_is_neither_asked_for_nor_kept_at_coefficient_zero() -> None:
    objective = PolicyObjective()
    assert objective.entropy.value == "none"
    tokens = replace(random_tokens(), entropy=None)
    loss, metrics = objective(tokens, count_denominators([tokens]))
    assert "entropy" not in metrics
    assert torch.isfinite(loss)
