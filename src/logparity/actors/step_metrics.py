"""What one optimisation step reports."""

from __future__ import annotations

import warnings

from logparity.actors.optimizer import StepResult
from logparity.losses.base import Metrics


def plain_metrics(metrics: Metrics) -> dict[str, float]:
    """Means as numbers; one that counted nothing is left out."""
    values = {name: ratio.value() for name, ratio in metrics.items()}
    return {name: value for name, value in values.items() if value is not None}


def step_metrics(prefix: str, loss: float, step: StepResult) -> dict[str, float]:
    """Loss, gradient norm before clipping, learning rate, and whether the step was skipped, which is also warned of.

    Args:
        prefix: whose step it was, e.g. ``"actor"``.
        loss: of the whole step.
        step: what the optimizer did.

    Returns:
        Metrics under the prefix.
    """
    if step.bad_tensor is not None:
        warnings.warn(
            f"{prefix}: optimisation step skipped: gradient norm is {step.grad_norm}, first non-finite gradient in "
            f"{step.bad_tensor}. The weights are unchanged.",
            RuntimeWarning,
            stacklevel=3,
        )
    return {
        f"{prefix}/loss": loss,
        f"{prefix}/grad_norm": step.grad_norm,
        f"{prefix}/lr": step.lr,
        f"{prefix}/skipped_steps": float(step.bad_tensor is not None),
    }


__all__ = ["plain_metrics", "step_metrics"]
