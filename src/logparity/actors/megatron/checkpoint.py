"""Distributed checkpoints: weights, optimizer, and generators, each rank writing its share.

Weights and optimizer state are stored in the shapes of the whole weights, so another parallel layout can load them.
The generators' states belong to a rank and are restored only where the layout is the same; with dropout 0 nothing
reads them during a step.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch.distributed.checkpoint.api import CheckpointException

from logparity.actors.megatron import cpu
from logparity.errors import ModelError, RunFolderError

if TYPE_CHECKING:
    from logparity.actors.megatron.build import MegatronModel
    from logparity.actors.megatron.optimizer import ShardedOptimizer


def save_checkpoint(folder: Path, model: MegatronModel, optimizer: ShardedOptimizer) -> None:
    """Write weights, optimizer, and generators; all ranks together.

    Args:
        folder: an existing, empty folder that every rank sees.
        model: this rank's part.
        optimizer: its optimizer.

    Raises:
        RunFolderError: the folder is missing or holds something; on every rank.
    """
    problem = None
    if dist.get_rank() == 0:
        if not folder.is_dir():
            problem = f"checkpoint folder {folder} does not exist: make it first."
        elif any(folder.iterdir()):
            problem = f"checkpoint folder {folder} is not empty: choose a fresh one."
    box = [problem]
    dist.broadcast_object_list(box, src=0, device=cpu.device())
    if box[0] is not None:
        raise RunFolderError(box[0])
    state = _state(model, optimizer, loading=False)
    state["layout"] = _layout(model)
    state["generators"] = _generators(model)
    with cpu.megatron_calls():
        dist_checkpointing.save(state, str(folder), validate_access_integrity=True)


def load_checkpoint(folder: Path, model: MegatronModel, optimizer: ShardedOptimizer) -> None:
    """Restore what `save_checkpoint` wrote, also under another parallel layout; all ranks together.

    Args:
        folder: the checkpoint.
        model: this rank's part.
        optimizer: its optimizer.

    Raises:
        ModelError: it cannot be read or belongs to another model.
    """
    try:
        saved = dist_checkpointing.load_common_state_dict(str(folder))
        _refuse_other_models(folder, model)
        wanted = _state(model, optimizer, loading=True)
        same = saved.get("layout") == _layout(model)
        if same:
            wanted["generators"] = _generators(model)
        with cpu.megatron_calls():
            state = dist_checkpointing.load(wanted, str(folder))
    except CheckpointException as error:  # a BaseException, one cause per failed rank
        cause = next(iter(error.failures.values()))[0]
        raise ModelError(f"checkpoint {folder} does not fit this model: {_first_line(cause)}") from error
    except (OSError, RuntimeError, KeyError, dist_checkpointing.core.CheckpointingException) as error:
        raise ModelError(f"checkpoint {folder} cannot be read: {_first_line(error)}") from error
    for index, chunk in enumerate(model.bare):
        chunk.load_state_dict(state[f"model{index}"])
    optimizer.load_state_dict(state)
    if same:
        _restore_generators(state["generators"])


def _weights(model: MegatronModel) -> dict[str, Any]:
    about = {"dp_cp_group": model.groups.dp_cp}
    return {f"model{index}": chunk.sharded_state_dict(metadata=about) for index, chunk in enumerate(model.bare)}


def _state(model: MegatronModel, optimizer: ShardedOptimizer, *, loading: bool) -> dict[str, Any]:
    state = _weights(model)
    return {**state, **optimizer.state_dict(state, loading=loading)}


def _refuse_other_models(folder: Path, model: MegatronModel) -> None:
    """Compare shapes before anything is loaded: a failed load leaves the weights half overwritten."""
    stored = dist_checkpointing.load_tensors_metadata(str(folder))
    problem = None
    for wanted in nested_values(_weights(model)):
        if not isinstance(wanted, ShardedTensor):
            continue  # a gated pair, stored in two parts; the norms next to it have the model's shape as well
        free = 1 if wanted.allow_shape_mismatch else 0  # a vocabulary may be padded differently
        found = stored[wanted.key].global_shape if wanted.key in stored else None
        if found is None or tuple(found[free:]) != tuple(wanted.global_shape[free:]):
            shape = "nothing" if found is None else f"shape {tuple(found)}"
            problem = f"{wanted.key}: expected shape {tuple(wanted.global_shape)}, the checkpoint holds {shape}"
            break
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    for found_problem in problems:
        if found_problem is not None:
            raise ModelError(f"checkpoint {folder} belongs to another model: {found_problem}.")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _layout(model: MegatronModel) -> dict[str, Any]:
    sizes = model.groups.sizes
    return {
        "world": dist.get_world_size(),
        "tensor": sizes.tensor,
        "pipeline": sizes.pipeline,
        "virtual_pipeline": sizes.virtual_pipeline,
        "context": sizes.context,
        "expert": sizes.expert,
        "cuda": not cpu.without_cuda(),
    }


def _generators(model: MegatronModel) -> ShardedObject:  # noqa: ARG001
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
        "cuda": None if cpu.without_cuda() else torch.cuda.get_rng_state(),
        "tracker": get_cuda_rng_tracker().get_states(),
    }
    return ShardedObject("generators", state, (dist.get_world_size(),), (dist.get_rank(),))


def _restore_generators(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
    get_cuda_rng_tracker().set_states(state["tracker"])


__all__ = ["load_checkpoint", "save_checkpoint"]
