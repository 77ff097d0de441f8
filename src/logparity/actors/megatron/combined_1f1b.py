"""Combined 1F1B (overlapped expert communication) with logits in model precision.

That schedule takes the model apart into nodes and runs them itself, past `Float16Module` and so past its
``fp32_output``. Its last node upcasts whatever the model gives. Here it is replaced by one of the same class that
hands the model's own output on: the upcast is applied to an empty stand-in.

Works with both styles of Megatron-Core: nodes made by the plan itself (0.16), and node classes named by the plan class
in ``POST_PROCESS_NODE_CLASS`` (later), whose nodes call their model ``model`` instead of ``gpt_model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def model_schedule_plan(chunk: Any, inputs: Mapping[str, Any], *, fp32_output: bool) -> Any:
    """Build a chunk's schedule plan for one micro-batch.

    Args:
        chunk: a bare `GPTModel`.
        inputs: keyword arguments of its forward.
        fp32_output: leave the upcast in.

    Returns:
        The plan.
    """
    plan = chunk.build_schedule_plan(**inputs)
    if not fp32_output:
        keep_model_precision(plan)
    return plan


def keep_model_precision(plan: Any) -> None:
    """Replace a plan's last node, if this stage has one, by one that does not upcast.

    Args:
        plan: as `GPTModel.build_schedule_plan` returns it, not yet run.
    """
    node = plan.post_process
    if node is None:
        return
    state = node.chunk_state if hasattr(node, "chunk_state") else node.model_chunk_state
    plan.post_process = model_precision_node(type(node))(_model(node), state, node.event, node.stream)


def model_precision_node(base: type[Any]) -> type[Any]:
    """A class of nodes that compute what ``base`` computes, without its conversion to float32.

    Args:
        base: a post-process node class, called with model, state, event, and stream.

    Returns:
        A subclass.
    """

    class ModelPrecisionNode(base):  # type: ignore[misc]
        """Runs the base's forward on a model whose output is kept aside."""

        def forward_impl(self, hidden_states: Tensor) -> Tensor:
            name, model = _name(self), _model(self)
            aside = _KeptAside(model)
            setattr(self, name, aside)
            try:
                super().forward_impl(hidden_states)
            finally:
                setattr(self, name, model)
            output: Tensor = aside.__dict__.pop("output")
            return output

    return ModelPrecisionNode


class _KeptAside:
    """Stands in for a model: the same in everything, but its output is kept here and an empty tensor returned."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _postprocess(self, *args: Any, **kwargs: Any) -> Tensor:
        self.output = self._model._postprocess(*args, **kwargs)
        return torch.empty(0)


def _name(node: Any) -> str:
    return "gpt_model" if hasattr(node, "gpt_model") else "model"


def _model(node: Any) -> Any:
    return getattr(node, _name(node))


__all__ = ["keep_model_precision", "model_precision_node", "model_schedule_plan"]
