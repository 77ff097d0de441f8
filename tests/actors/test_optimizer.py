from __future__ import annotations

import pytest
import torch

from logparity.actors.optimizer import MasterOptimizer, OptimizerConfig
from logparity.errors import InputError


def weights() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = {
        "matrix": torch.nn.Parameter(torch.randn(3, 4, generator=generator)),
        "vector": torch.nn.Parameter(torch.randn(4, generator=generator)),
    }
    for weight in made.values():
        weight.grad = torch.randn(weight.shape, generator=generator)
    return made


def test_one_step_follows_the_published_update() -> None:
    held = weights()
    before = {name: w.detach().double().clone() for name, w in held.items()}
    grads = {name: w.grad.double().clone() for name, w in held.items()}
    norm = sum(g.square().sum() for g in grads.values()).sqrt()
    config = OptimizerConfig(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, max_grad_norm=0.5)
    result = MasterOptimizer(held, config).step()
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-6)
    assert (result.lr, result.bad_tensor) == (0.01, None)
    for name, old in before.items():
        g = grads[name] * 0.5 / norm
        decay = 0.1 if name == "matrix" else 0.0
        expected = old * (1 - 0.01 * decay) - 0.01 * g / (g.abs() + 1e-3)  # bias correction undoes 1 - beta at step 1
        torch.testing.assert_close(held[name].double(), expected, rtol=1e-5, atol=1e-7)


def test_small_gradients_are_not_scaled_up() -> None:
    held = weights()
    grad = held["vector"].grad.clone()
    MasterOptimizer(held, OptimizerConfig(max_grad_norm=1e6)).step()
    assert torch.equal(held["vector"].grad, grad)


def test_the_rate_warms_up_linearly() -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=4)
    assert [config.lr_at(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    optimizer = MasterOptimizer(weights(), config)
    assert [optimizer.step().lr for _ in range(2)] == [0.25, 0.5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_changes_nothing_and_is_named(bad: float) -> None:
    held = weights()
    optimizer = MasterOptimizer(held, OptimizerConfig(lr=0.1))
    held["vector"].grad[2] = bad
    before = {name: w.detach().clone() for name, w in held.items()}
    assert optimizer.step().bad_tensor == "vector"
    assert optimizer.steps == 0
    assert all(torch.equal(w, before[name]) for name, w in held.items())


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"max_grad_norm": float("nan")}])
def test_settings_outside_their_range_are_refused(bad: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(bad))}: expected"):
        OptimizerConfig(**bad)
