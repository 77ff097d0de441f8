"""Checkpoints of PyTorch's AdamW inside Megatron-Core's optimizers, where neither Apex nor Transformer Engine is there.

Its state has a ``step`` per parameter and is made at the first step; Megatron-Core 0.16 expects neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def make_checkpointable(optimizer: Any) -> None:
    """Let a chained Megatron optimizer be saved and loaded at any time, also before its first step.

    Args:
        optimizer: as `get_megatron_optimizer` returns it; parts with another Adam are left alone.
    """
    for part in optimizer.chained_optimizers:
        if not isinstance(part.optimizer, torch.optim.AdamW):
            continue
        for parameter in (p for group in part.optimizer.param_groups for p in group["params"]):
            moments = {name: torch.zeros_like(parameter.data) for name in ("exp_avg", "exp_avg_sq")}
            part.optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
        if hasattr(part, "_set_main_param_and_optimizer_states"):
            part._set_main_param_and_optimizer_states = _keeping_steps(part)


def _keeping_steps(part: Any) -> Any:
    """The distributed optimizer's setter of loaded state, for a state that has a step."""
    inner = part._set_main_param_and_optimizer_states

    def set_states(model_param: Parameter, tensors: Mapping[str, Tensor]) -> None:
        group, order = part.model_param_group_index_map[model_param]
        main = part.optimizer.param_groups[group]["params"][order]
        state = part.optimizer.state[main]
        # Loaded before, as one tensor for all parameters, which every parameter's update would count up.
        state["step"] = state["step"].clone()
        inner(model_param, {"step": state["step"], **tensors})

    return set_states


__all__ = ["make_checkpointable"]
