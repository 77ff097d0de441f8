"""Float32 master weights behind a model that computes in another dtype.

A bfloat16 weight has 8 significant bits: an update of 1e-5 rounds away on nine weights of ten. So the optimizer sees
float32 masters; the model computes with their cast, and its gradients are added up in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from logparity.models.weights import named_weights

if TYPE_CHECKING:
    from torch import Tensor

Model = TypeVar("Model", bound=torch.nn.Module)


class MasterWeights(Generic[Model]):
    """A model in its compute dtype, with float32 masters that carry float32 gradients.

    Where the model computes in float32 its parameters are the masters, and nothing exists twice.

    Args:
        load: loads the model in a given dtype; called for the compute dtype and, where that is another, for float32.
        dtype: compute dtype.

    Memory:
        4 bytes per weight for the masters, and 4 more while gradients are held; a compute-dtype gradient lives only
        until it has been added to its master's.
    """

    def __init__(self, load: Callable[[torch.dtype], Model], dtype: torch.dtype) -> None:
        # Loaded in its dtype, not cast: a cast would round the rotary frequencies too, which engines keep in float32.
        self.model: Model = load(dtype)
        self._compute = _parameters(self.model)
        self._separate = dtype is not torch.float32
        self.masters = dict(self._compute)
        if self._separate:
            source = _parameters(load(torch.float32))
            self.masters = {name: torch.nn.Parameter(source[name].detach()) for name in self._compute}
            for name, parameter in self._compute.items():
                parameter.register_post_accumulate_grad_hook(_mover(self.masters[name]))  # type: ignore[no-untyped-call]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for master in self.masters.values():
            master.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Cast the masters into the model's compute weights."""
        if self._separate:
            for name, master in self.masters.items():
                self._compute[name].copy_(master)


def _parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in named_weights(model) if isinstance(p, torch.nn.Parameter)}


def _mover(master: torch.nn.Parameter) -> Callable[[Tensor], None]:
    """A hook that moves a parameter's finished gradient into its master."""

    def move(parameter: Tensor) -> None:
        grad, parameter.grad = parameter.grad, None
        if grad is None:
            return
        if master.grad is None:
            master.grad = grad.float()
        else:
            master.grad.add_(grad)

    return move


__all__ = ["MasterWeights"]
