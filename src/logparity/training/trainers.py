"""From the configuration's backend to an actor and, for PPO, a critic."""

from __future__ import annotations

from pathlib import Path

from logparity.actors import HFActor, HFCritic, OptimizerConfig
from logparity.actors.base import Actor, Critic
from logparity.layout.context_parallel import ContextLayout
from logparity.training.algorithm import objective_of, value_objective_of
from logparity.training.config import TrainConfig


def build_trainers(config: TrainConfig, folder: Path) -> tuple[Actor, Critic | None]:
    """Build what scores and trains.

    Args:
        config: resolved configuration.
        folder: model folder that every rank sees.

    Returns:
        The actor, and the critic of PPO or None.

    Raises:
        LogparityError: the model or the parallel sizes cannot be used.
    """
    build = {"hf": _transformers, "fsdp": _fsdp, "megatron": _megatron}[config.actor.backend]
    return build(config, folder)


def _transformers(config: TrainConfig, folder: Path) -> tuple[Actor, Critic | None]:
    actor = HFActor(
        folder,
        objective_of(config.algorithm, config.rollout.max_new_tokens),
        _optimizer(config, config.optimizer.learning_rate),
        dtype=config.actor.dtype,
        micro_batch_tokens=config.actor.micro_batch_tokens,
        gradient_checkpointing=config.actor.gradient_checkpointing,
        recompute_loss=config.actor.recompute_loss,
        reference=config.algorithm.kl_coefficient > 0,
    )
    if config.algorithm.name != "ppo":
        return actor, None
    critic = HFCritic(
        folder,
        value_objective_of(config.algorithm),
        _optimizer(config, config.algorithm.value_learning_rate),
        dtype=config.actor.dtype,
        micro_batch_tokens=config.actor.micro_batch_tokens,
        gradient_checkpointing=config.actor.gradient_checkpointing,
    )
    return actor, critic


def _fsdp(config: TrainConfig, folder: Path) -> tuple[Actor, Critic | None]:
    from logparity.actors.fsdp import FSDPActor, open_mesh

    actor = FSDPActor(
        folder,
        objective_of(config.algorithm, config.rollout.max_new_tokens),
        _optimizer(config, config.optimizer.learning_rate),
        mesh=open_mesh(config.actor.fsdp.tensor),
        dtype=config.actor.dtype,
        micro_batch_tokens=config.actor.micro_batch_tokens,
        gradient_checkpointing=config.actor.gradient_checkpointing,
        recompute_loss=config.actor.recompute_loss,
        reference=config.algorithm.kl_coefficient > 0,
    )
    return actor, None


def _megatron(config: TrainConfig, folder: Path) -> tuple[Actor, Critic | None]:
    from logparity.actors.megatron import (
        MegatronActor,
        MegatronConfig,
        MegatronCritic,
        MicroBatchSize,
        ParallelSizes,
        initialize_groups,
    )

    sizes = config.actor.megatron
    groups = initialize_groups(
        ParallelSizes(
            tensor=sizes.tensor,
            pipeline=sizes.pipeline,
            virtual_pipeline=sizes.virtual_pipeline,
            context=sizes.context,
            context_layout=ContextLayout(sizes.context_layout),
            expert=sizes.expert,
            sequence_parallel=sizes.sequence_parallel,
        ),
        seed=config.run.seed,
    )
    settings = MegatronConfig(
        dtype=config.actor.dtype,
        micro_batch=MicroBatchSize(tokens=config.actor.micro_batch_tokens),
        packed=sizes.packed,
        distributed_optimizer=sizes.distributed_optimizer,
        recompute_loss=config.actor.recompute_loss,
        recompute_layers=config.actor.gradient_checkpointing,
    )
    actor = MegatronActor(
        folder,
        groups,
        objective_of(config.algorithm, config.rollout.max_new_tokens),
        _optimizer(config, config.optimizer.learning_rate),
        config=settings,
        reference=config.algorithm.kl_coefficient > 0,
    )
    if config.algorithm.name != "ppo":
        return actor, None
    value_optimizer = _optimizer(config, config.algorithm.value_learning_rate)
    return actor, MegatronCritic(folder, groups, value_objective_of(config.algorithm), value_optimizer, config=settings)


def _optimizer(config: TrainConfig, learning_rate: float) -> OptimizerConfig:
    return OptimizerConfig(
        lr=learning_rate,
        warmup_steps=config.optimizer.warmup_steps,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        eps=config.optimizer.eps,
        weight_decay=config.optimizer.weight_decay,
        max_grad_norm=config.optimizer.max_grad_norm,
    )
