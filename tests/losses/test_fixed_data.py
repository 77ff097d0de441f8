"""What a loss takes as given gets no gradient, and stops none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from logparity.losses import KLConfig, KLEstimator, PolicyObjective, TokenTensors, count_denominators, kl_loss
from tests.support.loss_batches import OBJECTIVES, random_tokens

_FIXED = ("old_log_probs", "advantages", "ref_log_probs", "rollout_log_probs")


def gradients(objective: object, tokens: TokenTensors) -> torch.Tensor:
    loss, _ = objective(tokens, count_denominators([tokens]))  # type: ignore[operator]
    loss.backward()
    assert tokens.log_probs.grad is not None
    return tokens.log_probs.grad


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_fixed_data_that_requires_a_gradient_gets_none(name: str) -> None:
    expected = gradients(OBJECTIVES[name], random_tokens())
    tokens = random_tokens()
    tokens = replace(tokens, **{field: getattr(tokens, field).requires_grad_() for field in _FIXED})
    assert torch.equal(gradients(OBJECTIVES[name], tokens), expected)
    for field in _FIXED:
        assert getattr(tokens, field).grad is None


@pytest.mark.parametrize("name", ["clip", "dual_clip", "cispo", "gspo", "opsm"])
def test_old_log_probs_still_on_the_graph_leave_the_gradient_whole(name: str) -> None:
    attached, detached = random_tokens(), random_tokens()
    attached = replace(attached, old_log_probs=attached.log_probs)
    detached = replace(detached, old_log_probs=detached.log_probs.detach())
    expected = gradients(OBJECTIVES[name], detached)
    assert expected.abs().sum() > 0
    assert torch.equal(gradients(OBJECTIVES[name], attached), expected)


def test_the_reference_and_the_old_policy_of_a_kl_term_are_fixed() -> None:
    log_probs = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.5, -1.5], dtype=torch.float64, requires_grad=True)
    config = KLConfig(KLEstimator.K2, 1.0, unbiased=True)
    values, _ = kl_loss(log_probs, reference, torch.ones(2).bool(), config, old_log_probs=log_probs)
    values.sum().backward()
    # value d^2 / 2 times a ratio of 1: the gradient is d + d^2 / 2.
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([0.5 + 0.125, -0.5 + 0.125])
    assert reference.grad is None
    assert PolicyObjective(kl=config).reads >= {"ref_log_probs", "old_log_probs"}
