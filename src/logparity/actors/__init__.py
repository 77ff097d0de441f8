"""Actors: who scores responses under the policy's weights and trains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logparity.actors.base import Actor, Critic

if TYPE_CHECKING:
    from logparity.actors.critic import HFCritic
    from logparity.actors.fsdp import FSDPActor
    from logparity.actors.hf import HFActor
    from logparity.actors.optimizer import OptimizerConfig

_LAZY = {
    "FSDPActor": "logparity.actors.fsdp",
    "HFActor": "logparity.actors.hf",
    "HFCritic": "logparity.actors.critic",
    "OptimizerConfig": "logparity.actors.optimizer",
}


def __getattr__(name: str) -> Any:
    """Import an actor, and with it torch, on first use."""
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


__all__ = ["Actor", "Critic", "FSDPActor", "HFActor", "HFCritic", "OptimizerConfig"]
