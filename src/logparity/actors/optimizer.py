"""AdamW on float32 masters: warm-up, clipping by global norm, and no step on a non-finite gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from logparity.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """How weights are updated.

    Args:
        lr: learning rate after warm-up; >= 0.
        betas: AdamW's decay rates of the two moments.
        eps: AdamW's denominator offset.
        weight_decay: decoupled decay of matrices; vectors (norms, biases) are never decayed.
        max_grad_norm: gradients are scaled down to this global L2 norm; 0 turns clipping off.
        warmup_steps: steps over which the rate rises linearly from ``lr / warmup_steps``.

    Raises:
        InputError: a value is outside its range.
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "max_grad_norm", "warmup_steps"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{name}: expected a finite number >= 0, got {value}.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas: expected two numbers in [0, 1), got {self.betas}.")

    def lr_at(self, step: int) -> float:
        """Learning rate of step ``step``, counted from 0: ``lr * min(1, (step + 1) / warmup_steps)``."""
        return self.lr * min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else self.lr


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did.

    Args:
        grad_norm: global L2 norm of the gradients before clipping.
        lr: learning rate of the step.
        bad_tensor: the first weight with a non-finite gradient: the step was skipped; None where it was taken.
    """

    grad_norm: float
    lr: float
    bad_tensor: str | None = None


class MasterOptimizer:
    """AdamW over named float32 weights.

    Args:
        weights: the masters by name; their ``.grad`` is read.
        config: how they are updated.
    """

    def __init__(self, weights: Mapping[str, torch.nn.Parameter], config: OptimizerConfig) -> None:
        self._weights = weights
        self._config = config
        self.steps = 0
        matrices = [w for w in weights.values() if w.ndim >= 2]
        vectors = [w for w in weights.values() if w.ndim < 2]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
        )

    def step(self) -> StepResult:
        """Clip and apply the gradients; a step with a non-finite gradient norm changes nothing."""
        norm = self._norm()
        lr = self._config.lr_at(self.steps)
        if not torch.isfinite(norm):
            return StepResult(float(norm), lr, self._first_bad())
        if self._config.max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(self._weights.values(), self._config.max_grad_norm, norm)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self.steps += 1
        return StepResult(float(norm), lr)

    def state_dict(self) -> dict[str, Any]:
        """Moments and step count, as tensors and plain numbers."""
        return {"adamw": self.adamw.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.adamw.load_state_dict(state["adamw"])
        self.steps = int(state["steps"])

    def _norm(self) -> Tensor:
        """Global L2 norm of the gradients."""
        return torch.nn.utils.get_total_norm([w.grad for w in self._weights.values() if w.grad is not None])

    def _bad(self) -> list[bool]:
        """For each weight, whether its gradient is not finite."""
        grads = [weight.grad for weight in self._weights.values()]
        return [grad is not None and not bool(torch.isfinite(grad).all()) for grad in grads]

    def _first_bad(self) -> str:
        bad = (name for name, is_bad in zip(self._weights, self._bad(), strict=True) if is_bad)
        return next(bad, "none: every gradient is finite, their norm overflows")


__all__ = ["MasterOptimizer", "OptimizerConfig", "StepResult"]
