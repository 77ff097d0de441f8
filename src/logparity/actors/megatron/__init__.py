"""Actor on Megatron-Core: tensor, sequence, context, pipeline, expert, and data parallel, logits in model precision."""

from __future__ import annotations

import warnings

from logparity.errors import MissingDependencyError

with warnings.catch_warnings():
    # What Megatron-Core says about the optional packages it falls back from, some ten times on every rank.
    warnings.filterwarnings("ignore", module=r"megatron\.")
    try:
        import megatron.core  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "megatron":
            raise
        raise MissingDependencyError(
            "logparity.actors.megatron: expected megatron-core, got none. Install it without the packages it does not "
            "need here: pip install --no-deps megatron-core==0.16.1"
        ) from error
    from logparity.actors.megatron.actor import MegatronActor
    from logparity.actors.megatron.config import MegatronConfig
    from logparity.actors.megatron.critic import MegatronCritic
    from logparity.actors.megatron.forward import forward_only
    from logparity.actors.megatron.groups import ParallelGroups, ParallelSizes, initialize_groups, release_groups
    from logparity.actors.megatron.optimizer import DecayConfig
    from logparity.actors.megatron.scoring import compute_log_prob, compute_values
    from logparity.actors.sharing import MicroBatchSize

__all__ = [
    "DecayConfig",
    "MegatronActor",
    "MegatronConfig",
    "MegatronCritic",
    "MicroBatchSize",
    "ParallelGroups",
    "ParallelSizes",
    "compute_log_prob",
    "compute_values",
    "forward_only",
    "initialize_groups",
    "release_groups",
]
