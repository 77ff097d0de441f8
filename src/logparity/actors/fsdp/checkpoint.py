"""Checkpoints by ``torch.distributed.checkpoint``: each rank writes its part, any number of ranks reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from logparity.actors.fsdp.optimizer import ShardedOptimizer
from logparity.actors.fsdp.weights import ShardedWeights
from logparity.errors import ModelError, RunFolderError

_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEPS = "steps"


def save_checkpoint(folder: Path, weights: ShardedWeights, optimizer: ShardedOptimizer) -> None:
    """Write masters, moments, and counters; all ranks together.

    Args:
        folder: an existing, empty folder that every rank sees.
        weights: the masters.
        optimizer: theirs.

    Raises:
        RunFolderError: the folder is missing or holds something; on every rank.
    """
    box: list[str | None] = [_problem(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    if box[0] is not None:
        raise RunFolderError(box[0])
    state = _tensors(weights, optimizer, set(optimizer.adamw.state))
    save({**state, _STEPS: torch.tensor(optimizer.steps)}, checkpoint_id=folder)


def load_checkpoint(folder: Path, weights: ShardedWeights, optimizer: ShardedOptimizer) -> None:
    """Restore what `save_checkpoint` wrote, also over another number of ranks; all ranks together.

    Args:
        folder: the checkpoint.
        weights: the masters.
        optimizer: theirs.

    Raises:
        ModelError: it cannot be read, or belongs to another model, which is found out before anything is changed.
    """
    try:
        stored = FileSystemReader(folder).read_metadata()
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise ModelError(f"checkpoint {folder} cannot be read: {error}") from error
    _require_same_model(folder, stored, weights)
    moved = {p for name, p in weights.parts.items() if f"{_MOMENTS[0]}/{name}" in stored.state_dict_metadata}
    optimizer.adamw.state.clear()
    optimizer.adamw.state.update({part: _fresh_state(part) for part in moved})
    steps = torch.tensor(0)
    state = {**_tensors(weights, optimizer, moved), _STEPS: steps}
    try:
        load(state, checkpoint_id=folder)
    except CheckpointException as error:  # a BaseException, one cause per failed rank
        cause = next(iter(error.failures.values()))[0]
        raise ModelError(f"checkpoint {folder} cannot be read: {cause}") from error
    optimizer.steps = int(steps)


def _problem(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"checkpoint folder {folder} does not exist: make it first."
    return f"checkpoint folder {folder} is not empty: choose a fresh one." if any(folder.iterdir()) else None


def _tensors(weights: ShardedWeights, optimizer: ShardedOptimizer, moved: set[Any]) -> dict[str, Tensor]:
    """Masters and AdamW's state by kind and name, sharing the storage that is stepped."""
    state: dict[str, Tensor] = {}
    for name, part in weights.parts.items():
        state[f"weight/{name}"] = weights.as_whole(name, part)
        if part in moved:
            own: Mapping[str, Tensor] = optimizer.adamw.state[part]
            state |= {f"{kind}/{name}": weights.as_whole(name, own[kind]) for kind in _MOMENTS}
            state[f"step/{name}"] = own["step"]
    return state


def _fresh_state(part: torch.nn.Parameter) -> dict[str, Tensor]:
    """What AdamW keeps of a weight, to be filled; its fused kernel wants the count beside the weight."""
    step = torch.zeros((), dtype=torch.float32, device=part.device)
    return {"step": step, **{kind: torch.zeros_like(part, requires_grad=False) for kind in _MOMENTS}}


def _require_same_model(folder: Path, stored: Metadata, weights: ShardedWeights) -> None:
    held = stored.state_dict_metadata
    found = {
        name.removeprefix("weight/"): tuple(entry.size)
        for name, entry in held.items()
        if name.startswith("weight/") and isinstance(entry, TensorStorageMetadata)
    }
    expected = {name: tuple(p.shape) for name, p in weights.whole.items()}
    if found != expected or _STEPS not in held:
        differing = sorted(name for name in found | expected if found.get(name) != expected.get(name)) or [_STEPS]
        raise ModelError(f"checkpoint {folder} belongs to another model: {differing[0]} differs in name or shape.")


__all__ = ["load_checkpoint", "save_checkpoint"]
