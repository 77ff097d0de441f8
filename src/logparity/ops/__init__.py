"""Token log-probs and entropy from logits or hidden states: exact, flat in memory, over any vocabulary shard.

Names are imported on first use (PEP 562): the planner is plain arithmetic and has to work where torch is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from logparity.errors import MissingDependencyError

if TYPE_CHECKING:
    from logparity.ops.api import token_log_probs
    from logparity.ops.choice import Choice, choose
    from logparity.ops.linear import linear_token_log_probs
    from logparity.ops.on_policy import on_policy_token_log_probs
    from logparity.ops.planner import MemoryPlan, plan_memory
    from logparity.ops.results import TokenLogProbs
    from logparity.ops.support import Support

_HOMES = {
    "Choice": "choice",
    "MemoryPlan": "planner",
    "Support": "support",
    "TokenLogProbs": "results",
    "choose": "choice",
    "linear_token_log_probs": "linear",
    "on_policy_token_log_probs": "on_policy",
    "plan_memory": "planner",
    "token_log_probs": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'logparity.ops' has no attribute {name!r}")
    try:
        return getattr(import_module(f"logparity.ops.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f'logparity.ops.{name}: expected torch, got none. Install the extra: pip install "logparity[torch]".'
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Choice",
    "MemoryPlan",
    "Support",
    "TokenLogProbs",
    "choose",
    "linear_token_log_probs",
    "on_policy_token_log_probs",
    "plan_memory",
    "token_log_probs",
]
