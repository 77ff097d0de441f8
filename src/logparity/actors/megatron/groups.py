"""Who computes what with whom: parallel sizes, checked, and the process groups made from them, as one value.

This is the only module that talks to Megatron-Core's global ``parallel_state``. Everything else is handed a
`ParallelGroups`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from logparity.actors.megatron import cpu
from logparity.errors import InputError
from logparity.layout.context_parallel import ContextLayout

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """How many ranks share each kind of work; the data-parallel size is what is left of the world.

    Args:
        tensor: ranks that share every matrix (and the vocabulary).
        pipeline: stages that share the layers.
        virtual_pipeline: model chunks per stage; above 1 the schedule is interleaved.
        context: ranks that share the tokens of every sequence.
        expert: ranks that share the experts of a mixture-of-experts model; taken out of a pipeline stage's ranks.
        expert_tensor: ranks that share every matrix of an expert; above 1 needs NCCL.
        sequence_parallel: share the norms' activations over the tensor-parallel ranks as well.
        context_layout: how tokens are shared out over the context-parallel ranks.

    Raises:
        InputError: a size is below 1, or a combination has no meaning.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = False
    context_layout: ContextLayout = ContextLayout.ZIGZAG

    def __post_init__(self) -> None:
        object.__setattr__(self, "context_layout", ContextLayout(self.context_layout))
        for name in ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected a parallel size >= 1, got {getattr(self, name)}.")
        if self.virtual_pipeline > 1 and self.pipeline == 1:
            raise InputError(
                f"virtual_pipeline: expected 1 without pipeline parallelism, got {self.virtual_pipeline}. "
                "Interleaving needs pipeline >= 2."
            )
        if self.sequence_parallel and self.tensor == 1:
            raise InputError("sequence_parallel: expected tensor >= 2 to share activations over, got tensor=1.")
        if self.expert > 1 and self.tensor > 1 and not self.sequence_parallel:
            raise InputError("expert: with tensor parallelism the experts' dispatcher needs sequence_parallel=True.")

    def data(self, world: int) -> int:
        """Data-parallel size in a world of that many ranks.

        Args:
            world: number of ranks.

        Returns:
            Model replicas.

        Raises:
            InputError: the world does not divide.
        """
        model = self.tensor * self.pipeline * self.context
        if world % model:
            raise InputError(
                f"world size: expected a multiple of tensor * pipeline * context = {self.tensor} * {self.pipeline} * "
                f"{self.context} = {model}, got {world}. Start that many ranks or change the parallel sizes."
            )
        if (world // self.pipeline) % (self.expert * self.expert_tensor):
            raise InputError(
                f"expert * expert_tensor: expected a divisor of the {world // self.pipeline} ranks of a stage, "
                f"got {self.expert} * {self.expert_tensor}."
            )
        return world // model

    @property
    def token_multiple(self) -> int:
        """What the length of every sequence is padded to a multiple of, so that ranks get equal shares."""
        context = 2 * self.context if self.context > 1 else 1
        return context * (self.tensor if self.sequence_parallel else 1)


@dataclass(frozen=True, slots=True)
class ParallelGroups:
    """This rank's process groups.

    Args:
        sizes: what they were made from.
        collection: the same groups as Megatron-Core's classes take them.
        tp: tensor-parallel group.
        pp: pipeline-parallel group.
        cp: context-parallel group.
        dp: data-parallel group.
        dp_cp: ranks that hold the same weights: data- and context-parallel together.
        ep: expert-parallel group.
        expert_tp: tensor-parallel group within an expert.
    """

    sizes: ParallelSizes
    collection: ProcessGroupCollection
    tp: ProcessGroup
    pp: ProcessGroup
    cp: ProcessGroup
    dp: ProcessGroup
    dp_cp: ProcessGroup
    ep: ProcessGroup
    expert_tp: ProcessGroup

    @property
    def last_stage(self) -> bool:
        """Whether this rank holds the last pipeline stage, and with it the LM head."""
        return bool(self.pp.rank() == self.pp.size() - 1)

    def holds_first_layer(self, chunk: int) -> bool:
        """Whether model chunk ``chunk`` of this rank starts with the embedding."""
        return bool(self.pp.rank() == 0) and chunk == 0

    def holds_head(self, chunk: int) -> bool:
        """Whether model chunk ``chunk`` of this rank ends with the LM head."""
        return self.last_stage and chunk == self.sizes.virtual_pipeline - 1

    def from_last_stage(self, value: Any) -> Any:
        """A picklable value of the last stage, on every stage."""
        box = [value]
        dist.broadcast_object_list(
            box, src=dist.get_global_rank(self.pp, self.pp.size() - 1), group=self.pp, device=cpu.device()
        )
        return box[0]


def initialize_groups(sizes: ParallelSizes, *, seed: int = 1234) -> ParallelGroups:
    """Make all process groups of the default world and seed Megatron-Core's generators.

    Args:
        sizes: parallel sizes.
        seed: of the generators; only dropout and random initialisation would read them.

    Returns:
        The groups of this rank.

    Raises:
        InputError: the default process group is missing, or the world does not divide.
    """
    if not dist.is_initialized():
        raise InputError(
            "process group: expected an initialised default group, got none. Start with torchrun and call "
            "torch.distributed.init_process_group first."
        )
    cpu.prepare()
    sizes.data(dist.get_world_size())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        virtual_pipeline_model_parallel_size=sizes.virtual_pipeline if sizes.virtual_pipeline > 1 else None,
        context_parallel_size=sizes.context,
        expert_model_parallel_size=sizes.expert,
        expert_tensor_parallel_size=sizes.expert_tensor,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(seed, inference_rng_tracker=cpu.without_cuda(), force_reset_rng=True)
    collection = ProcessGroupCollection.use_mpu_process_groups()
    return ParallelGroups(
        sizes=sizes,
        collection=collection,
        tp=collection.tp,
        pp=collection.pp,
        cp=collection.cp,
        dp=collection.dp,
        dp_cp=collection.dp_cp,
        ep=collection.ep,
        expert_tp=collection.expt_tp,
    )


def release_groups() -> None:
    """Destroy the groups, so that others can be made."""
    parallel_state.destroy_model_parallel()


__all__ = ["ParallelGroups", "ParallelSizes", "initialize_groups", "release_groups"]
