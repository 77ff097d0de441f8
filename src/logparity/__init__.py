"""Token log-probs in model precision, and a token-by-token comparison of trainer and rollout engine.

The names below are the public interface. Those that need torch are imported on first use (PEP 562), so that the
probe, the report, and the command line work without it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from logparity.records import (
    EngineInfo,
    FinishReason,
    LogProbMode,
    Rollout,
    SamplingSettings,
    ScoredTokens,
    TokenBatch,
    TrainingBatch,
)

if TYPE_CHECKING:
    from logparity.ops import (
        MemoryPlan,
        Support,
        TokenLogProbs,
        linear_token_log_probs,
        on_policy_token_log_probs,
        plan_memory,
        token_log_probs,
    )
    from logparity.parallel import VocabShard

try:
    __version__ = version("logparity")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

_LAZY = {
    "MemoryPlan": "logparity.ops",
    "Support": "logparity.ops",
    "TokenLogProbs": "logparity.ops",
    "VocabShard": "logparity.parallel",
    "linear_token_log_probs": "logparity.ops",
    "on_policy_token_log_probs": "logparity.ops",
    "plan_memory": "logparity.ops",
    "token_log_probs": "logparity.ops",
}


def __getattr__(name: str) -> Any:
    """Import a torch-dependent public name on first use."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'logparity' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "EngineInfo",
    "FinishReason",
    "LogProbMode",
    "MemoryPlan",
    "Rollout",
    "SamplingSettings",
    "ScoredTokens",
    "Support",
    "TokenBatch",
    "TokenLogProbs",
    "TrainingBatch",
    "VocabShard",
    "__version__",
    "linear_token_log_probs",
    "on_policy_token_log_probs",
    "plan_memory",
    "token_log_probs",
]
