"""What an optimisation step tells its user."""

from __future__ import annotations

import warnings

from logparity.actors.optimizer import StepResult


def step_metrics(loss: float, step: StepResult, loss_scale: float) -> dict[str, float]:
    """Metrics of a step; warns, with the tensor's name, where it was skipped.

    Args:
        loss: of the whole step.
        step: what the optimizer did.
        loss_scale: factor on the loss of the next step.

    Returns:
        Names and numbers.
    """
    if step.bad_tensor is not None:
        warnings.warn(
            f"optimisation step skipped: first non-finite gradient in {step.bad_tensor}. The weights are unchanged; "
            f"the loss scale is {loss_scale:g}.",
            RuntimeWarning,
            stacklevel=4,
        )
    return {
        "actor/loss": loss,
        "actor/grad_norm": step.grad_norm,
        "actor/lr": step.lr,
        "actor/skipped_steps": float(step.bad_tensor is not None),
        "actor/loss_scale": loss_scale,
    }


__all__ = ["step_metrics"]
