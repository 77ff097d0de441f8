"""Backward functions that give first derivatives only, and say so at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import torch

Result = TypeVar("Result")


def first_order_only(backward: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate the backward of an autograd function that recomputes its gradient outside of autograd.

    torch's own ``once_differentiable`` stays silent where the incoming gradient is a constant, as it is for most
    losses, and a second derivative would be taken for 0.

    Args:
        backward: computes gradients from ``ctx`` and upstream gradients.

    Returns:
        The same, refusing to run where a graph of the backward is asked for.
    """

    @wraps(backward)
    def guarded(*args: object) -> Result:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "double backward of token log-probs: expected first derivatives only, got create_graph=True. "
                "Use impl='reference' to differentiate twice."
            )
        return backward(*args)

    return guarded
