"""Rollout engines: who samples responses, and which log-probs they report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logparity.rollout.base import Progress, Request, RolloutEngine

if TYPE_CHECKING:
    from logparity.rollout.hf import HFRolloutEngine


def __getattr__(name: str) -> Any:
    """Import an engine, and with it torch, on first use."""
    if name != "HFRolloutEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from logparity.rollout.hf import HFRolloutEngine

    return HFRolloutEngine


__all__ = ["HFRolloutEngine", "Progress", "Request", "RolloutEngine"]
