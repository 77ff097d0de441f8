"""Weights from a Hugging Face folder onto the ranks, and from the ranks back under Hugging Face names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import Parameter

from logparity.actors.megatron.naming import Placed, placed_parameters
from logparity.errors import ModelError

if TYPE_CHECKING:
    from logparity.actors.megatron.build import MegatronModel
    from logparity.actors.megatron.groups import ParallelGroups

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightFiles:
    """The safetensors files of a model folder, read weight by weight.

    Args:
        folder: the model folder.

    Raises:
        ModelError: it has no safetensors files, or they cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        if (folder / _INDEX).is_file():
            self._file_of: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
        elif (folder / _SINGLE).is_file():
            self._file_of = dict.fromkeys(self._file(_SINGLE).keys(), _SINGLE)
        else:
            raise ModelError(
                f"model folder {folder}: expected {_SINGLE} or {_INDEX}, which ranks read in parts. Save the model "
                "once more with save_pretrained."
            )

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str) -> Tensor:
        """The weight of that name, on the CPU, in the dtype of the file."""
        if name not in self:
            raise ModelError(f"model folder {self._folder} has no weight {name}: is it another model's?")
        try:
            tensor: Tensor = self._file(self._file_of[name]).get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{self._folder / self._file_of[name]} cannot be read: {error}") from error
        return tensor

    def _file(self, name: str) -> Any:
        if name not in self._open:
            try:
                self._open[name] = safe_open(self._folder / name, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{self._folder / name} cannot be read: {error}") from error
        return self._open[name]


@torch.no_grad()
def load_weights(model: MegatronModel, also: Callable[[Parameter, Tensor], None] | None = None) -> None:
    """Copy the folder's weights into the model. A value head that the folder lacks stays as it is.

    Args:
        model: this rank's chunks.
        also: called with every parameter and its values in the dtype of the folder: float32 masters take those, not
            their cast to the compute dtype.

    Raises:
        ModelError: a weight is missing or has another shape.
    """
    files = WeightFiles(model.family.folder.path)
    for placed in placed_parameters(model):
        name = placed.rule.names[0]
        if name.startswith("score.") and name not in files:
            continue
        group = model.groups.expert_tp if placed.expert else model.groups.tp
        shard = placed.rule.shard(files.read, group.rank(), group.size())
        if shard.shape != placed.parameter.shape:
            raise ModelError(
                f"{name}: expected a shard of shape {tuple(placed.parameter.shape)}, the folder gives "
                f"{tuple(shard.shape)}. Do config.json and the weights belong together?"
            )
        placed.parameter.copy_(shard)
        if also is not None:
            also(placed.parameter, shard)


def each_weight(
    model: MegatronModel, value_of: Callable[[Parameter], Tensor | None] = lambda p: p.data
) -> Iterator[tuple[str, Tensor]]:
    """Every weight whole, on every rank, under its Hugging Face name; all ranks must iterate to the end together.

    Args:
        model: this rank's chunks.
        value_of: what to gather of a parameter, in its shape: the parameter itself, or its gradient.

    Yields:
        Name and tensor; a tied LM head comes once, under the embedding's name.

    Memory:
        One parameter whole at a time.
    """
    groups = model.groups
    own = placed_parameters(model)
    yielded: set[str] = set()
    for stage in range(groups.pp.size()):
        here = groups.pp.rank() == stage
        for index in range(_shared(len(own) if here else None, groups.pp, stage)):
            for name, tensor in _whole(own[index] if here else None, groups, stage, value_of):
                if name not in yielded:
                    yielded.add(name)
                    yield name, tensor


def _whole(
    placed: Placed | None, groups: ParallelGroups, stage: int, value_of: Callable[[Parameter], Tensor | None]
) -> list[tuple[str, Tensor]]:
    """One parameter of one stage, on all ranks: gathered over shards, then over experts, then sent to all stages."""
    parts: dict[str, Tensor] = {}
    if placed is not None:
        value = value_of(placed.parameter)
        if value is None:
            value = torch.zeros_like(placed.parameter)
        parts = placed.rule.join(_gather(value, groups.expert_tp if placed.expert else groups.tp))
        if placed.expert and groups.ep.size() > 1:
            parts = _over_experts(parts, groups)
    if groups.pp.size() == 1:
        return list(parts.items())
    about = [(name, part.shape, part.dtype) for name, part in parts.items()] if placed is not None else None
    found = []
    source = dist.get_global_rank(groups.pp, stage)
    for name, shape, dtype in _shared(about, groups.pp, stage):
        tensor = parts[name].contiguous() if placed is not None else torch.empty(shape, dtype=dtype, device=_place())
        dist.broadcast(tensor, src=source, group=groups.pp)
        found.append((name, tensor))
    return found


def _over_experts(parts: dict[str, Tensor], groups: ParallelGroups) -> dict[str, Tensor]:
    """The same parameter of every expert-parallel rank: other experts under other names, of the same shapes."""
    names: list[Any] = [None] * groups.ep.size()
    dist.all_gather_object(names, list(parts), group=groups.ep)
    found: dict[str, Tensor] = {}
    for position, part in enumerate(parts.values()):
        for rank, tensor in enumerate(_gather(part, groups.ep)):
            found[names[rank][position]] = tensor
    return found


def _gather(value: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    if group.size() == 1:
        return [value]
    received = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(received, value.contiguous(), group=group)
    return received


def _shared(value: Any, group: dist.ProcessGroup, rank: int) -> Any:
    if group.size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=dist.get_global_rank(group, rank), group=group, device=_place())
    return box[0]


def _place() -> torch.device:
    from logparity.actors.megatron import cpu

    return cpu.device()


__all__ = ["WeightFiles", "each_weight", "load_weights"]
