"""The float32 masters of a sharded model: this rank's part of every weight, as plain tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from logparity.models.weights import named_weights


class ShardedWeights:
    """Parameters of a sharded model by Hugging Face name, and the part of each that lies on this rank.

    The parts share their storage with the model, so an optimizer that steps them steps it.

    Args:
        model: sharded by FSDP2.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.whole = {name: p for name, p in named_weights(model) if isinstance(p, DTensor)}
        self.parts = {name: nn.Parameter(_local(p)) for name, p in self.whole.items()}

    def take_gradients(self) -> None:
        """Hand the summed gradients of the model's parameters to the parts."""
        for name, parameter in self.whole.items():
            grad = parameter.grad
            self.parts[name].grad = _local(grad) if isinstance(grad, DTensor) else None

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for name, parameter in self.whole.items():
            parameter.grad = None
            self.parts[name].grad = None

    def as_whole(self, name: str, part: Tensor) -> DTensor:
        """A tensor shaped like this rank's part of a weight, as a shard of the whole."""
        like = self.whole[name]
        return DTensor.from_local(
            part.detach(),
            device_mesh=like.device_mesh,
            placements=like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    @torch.no_grad()
    def gathered(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Whole weights under Hugging Face names.

        Args:
            dtype: of the weights; buffers keep theirs.

        Yields:
            Name and tensor. All ranks must iterate to the end together.
        """
        for name, tensor in named_weights(self._model):
            if isinstance(tensor, DTensor):
                # Cast before the gather: half the bytes travel.
                yield name, _whole(tensor.to(dtype))
            else:
                yield name, tensor.detach()


@torch.no_grad()
def _local(tensor: DTensor) -> Tensor:
    part: Tensor = tensor.to_local()
    return part.detach()


def _whole(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


__all__ = ["ShardedWeights"]
