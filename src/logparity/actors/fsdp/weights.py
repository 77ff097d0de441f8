"""The float32 masters of a sharded model: this rank's part of every weight, as plain tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from logparity.actors.fsdp.mesh import TENSOR
from logparity.models.weights import named_weights


class ShardedWeights:
    """Parameters of a sharded model by Hugging Face name, and the part of each that lies on this rank.

    The parts share their storage with the model, so an optimizer that steps them steps it.

    Args:
        model: sharded by FSDP2.
        tensor: the ranks that share matrices with this one.
        summed: names of weights whose gradient is to be summed over them.
    """

    def __init__(self, model: nn.Module, tensor: DeviceMesh, summed: frozenset[str]) -> None:
        self._model, self._tensor, self._summed = model, tensor, summed
        self.whole = {name: p for name, p in named_weights(model) if isinstance(p, DTensor)}
        self.parts = {name: nn.Parameter(_local(p)) for name, p in self.whole.items()}

    def take_gradients(self) -> None:
        """Hand the gradients of the model's parameters, summed over data-parallel ranks, to the parts."""
        for name, parameter in self.whole.items():
            grad = parameter.grad
            self.parts[name].grad = _local(grad) if isinstance(grad, DTensor) else None
            if name in self._summed:
                dist.all_reduce(self.parts[name].grad, group=self._tensor.get_group())

    def counted(self) -> frozenset[str]:
        """Names of the parts that no earlier rank holds as well: over all ranks, each element counts once."""
        copies = self._tensor.get_local_rank() > 0
        return frozenset(name for name, p in self.whole.items() if not copies or TENSOR in _names(p))

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
                cast: DTensor = tensor.to(dtype)  # type: ignore[assignment]
                yield name, whole_tensor(cast)
            else:
                yield name, tensor.detach()


@torch.no_grad()
def _local(tensor: DTensor) -> Tensor:
    part: Tensor = tensor.to_local()
    return part.detach()


def _names(tensor: DTensor) -> tuple[str, ...]:
    return tensor.device_mesh.mesh_dim_names or ()


def whole_tensor(tensor: DTensor) -> Tensor:
    """All of a sharded tensor, on every rank: gathered over data-parallel ranks, then over tensor-parallel ones."""
    # One mesh axis at a time, the inner cut first: left to itself, DTensor does the same and warns of it.
    inner = tensor.redistribute(placements=[Replicate(), *tensor.placements[1:]])
    return inner.full_tensor()


__all__ = ["ShardedWeights", "whole_tensor"]
