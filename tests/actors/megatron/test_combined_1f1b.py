"""The last node of the combined 1F1B schedule, of both styles of Megatron-Core, on a CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import logparity.actors.megatron  # noqa: F401  # first: it keeps Megatron-Core's import warnings to itself


class Model(torch.nn.Module):
    """As much of a GPT model as the node touches: an output layer in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = SimpleNamespace(layers=[object()], final_layernorm=None)
        self.config = SimpleNamespace(mtp_num_layers=None)
        self.output_layer = torch.nn.Linear(4, 9, bias=False, dtype=torch.bfloat16)
        self.asked: dict[str, Any] = {}

    def _postprocess(self, hidden_states: torch.Tensor, **asked: Any) -> torch.Tensor:
        self.asked = asked
        return self.output_layer(hidden_states)


def chunk_state() -> SimpleNamespace:
    names = (
        "input_ids", "position_ids", "labels", "decoder_input", "rotary_pos_emb", "rotary_pos_cos", "rotary_pos_sin",
        "loss_mask", "attention_mask", "packed_seq_params", "sequence_len_offset", "runtime_gather_output",
        "extra_block_kwargs",
    )  # fmt: skip
    return SimpleNamespace(**dict.fromkeys(names, "given"))


def check(plan: Any, model: Model) -> None:
    """The stock node upcasts; the one in its place gives the same numbers in bfloat16, with their gradient."""
    from logparity.actors.megatron.combined_1f1b import keep_model_precision

    hidden = torch.randn(3, 4).bfloat16()
    stock = plan.post_process
    wide = stock.forward_impl(hidden)
    assert wide.dtype == torch.float32
    keep_model_precision(plan)
    node = plan.post_process
    assert isinstance(node, type(stock))
    assert (node.event, node.stream) == (stock.event, stock.stream)
    narrow = node.forward_func(hidden)  # what the schedule calls
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow.float(), wide)
    assert model.asked["packed_seq_params"] == "given"
    narrow.sum().backward()
    assert model.output_layer.weight.grad is not None
    assert torch.equal(node.forward_func(hidden), narrow)  # nothing is left over from the first call


def test_nodes_of_0_16_keep_model_precision() -> None:
    from megatron.core.models.gpt.fine_grained_callables import PostProcessNode

    model = Model()
    check(SimpleNamespace(post_process=PostProcessNode(model, chunk_state(), "event", "stream")), model)


def test_nodes_named_by_the_plan_class_keep_model_precision() -> None:
    """Later releases name the node class on the plan's class, and nodes call their model ``model``."""
    from megatron.core.models.gpt.fine_grained_callables import weak_method
    from megatron.core.pipeline_parallel.utils import ScheduleNode
    from megatron.core.transformer.module import float16_to_fp32

    class OwnNode(ScheduleNode):
        def __init__(self, model: Any, state: Any, event: Any, stream: Any) -> None:
            super().__init__(weak_method(self.forward_impl), stream, event, name="post_process")
            self.model, self.chunk_state = model, state

        def forward_impl(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return float16_to_fp32(self.model._postprocess(hidden_states, packed_seq_params="given"))

    class Plan:
        POST_PROCESS_NODE_CLASS = OwnNode

        def __init__(self, model: Model) -> None:
            self.post_process = self.POST_PROCESS_NODE_CLASS(model, chunk_state(), "event", "stream")

    model = Model()
    check(Plan(model), model)


def test_a_stage_without_a_last_node_is_left_alone() -> None:
    from logparity.actors.megatron.combined_1f1b import keep_model_precision

    plan = SimpleNamespace(post_process=None)
    keep_model_precision(plan)
    assert plan.post_process is None


@pytest.mark.parametrize("fp32_output", [False, True])
def test_a_plan_upcasts_only_where_the_loss_asks(fp32_output: bool) -> None:
    from megatron.core.models.gpt.fine_grained_callables import PostProcessNode

    from logparity.actors.megatron.combined_1f1b import model_schedule_plan

    model, plan = Model(), SimpleNamespace()

    def build_schedule_plan(**inputs: Any) -> SimpleNamespace:
        plan.inputs, plan.post_process = inputs, PostProcessNode(model, chunk_state(), "event", "stream")
        return plan

    model.build_schedule_plan = build_schedule_plan
    found = model_schedule_plan(model, {"input_ids": 1}, fp32_output=fp32_output)
    assert found.inputs == {"input_ids": 1}
    output = found.post_process.forward_func(torch.randn(3, 4).bfloat16())
    assert output.dtype == (torch.float32 if fp32_output else torch.bfloat16)
