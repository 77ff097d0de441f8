"""Actor on Megatron-Core: tensor, sequence, context, pipeline, expert, and data parallel, logits in model precision."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from logparity.errors import MissingDependencyError

if TYPE_CHECKING:
    from logparity.actors.megatron.actor import MegatronActor
    from logparity.actors.megatron.config import MegatronConfig
    from logparity.actors.megatron.critic import MegatronCritic
    from logparity.actors.megatron.forward import forward_only
    from logparity.actors.megatron.groups import ParallelGroups, ParallelSizes, initialize_groups, release_groups
    from logparity.actors.megatron.microbatch import MicroBatchSize
    from logparity.actors.megatron.optimizer import DecayConfig
    from logparity.actors.megatron.scoring import compute_log_prob, compute_values

_HOMES = {
    "DecayConfig": "optimizer",
    "MegatronActor": "actor",
    "MegatronConfig": "config",
    "MegatronCritic": "critic",
    "MicroBatchSize": "microbatch",
    "ParallelGroups": "groups",
    "ParallelSizes": "groups",
    "compute_log_prob": "scoring",
    "compute_values": "scoring",
    "forward_only": "forward",
    "initialize_groups": "groups",
    "release_groups": "groups",
}


def __getattr__(name: str) -> Any:
    """Import a public name, and with it Megatron-Core, on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "megatron":
            raise
        raise MissingDependencyError(
            f"logparity.actors.megatron.{name}: expected megatron-core, got none. Install it without the packages it "
            "does not need here: pip install --no-deps megatron-core==0.16.1"
        ) from error


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
