"""Through the pipeline: Megatron-Core's schedule around one forward step that keeps logits in model precision.

The schedule hands the last stage's output to a function that this module wraps so that the output is replaced by a
scalar as soon as it has been read: the schedule keeps what that function returns until the next micro-batch is done,
and would keep two micro-batches' logits alive otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from logparity.actors.megatron import cpu
from logparity.actors.megatron.batches import MicroBatch
from logparity.actors.megatron.combined_1f1b import model_schedule_plan

if TYPE_CHECKING:
    from logparity.actors.megatron.build import MegatronModel

Result = TypeVar("Result")
PostProcess = Callable[[Tensor, MicroBatch], Result]
"""Reads the last stage's output ``[b, s, ..]`` of a micro-batch; must not keep it."""
LossFunction = Callable[[Tensor, MicroBatch], tuple[Tensor, Result]]
"""Gives a scalar to go backward from, and what to report."""


@torch.no_grad()
def forward_only(
    post_process: PostProcess[Result],
    model: MegatronModel,
    batches: Sequence[MicroBatch],
    *,
    fp32_output: bool = True,
) -> list[Result]:
    """Run micro-batches through the model in evaluation mode, without gradient.

    Args:
        post_process: called on the last stage with the output of each micro-batch.
        model: this rank's part; every rank of its groups calls this together.
        batches: this data-parallel rank's micro-batches.
        fp32_output: have the model's output upcast to float32 as a whole. The default is what Megatron-Core's
            callers are used to; scoring passes False.

    Returns:
        What ``post_process`` returned, in order, on the last stage; an empty list on others.

    Memory:
        The output of one micro-batch at a time: it is gone before the next forward.
    """
    with _mode(model, training=False):
        return run_schedule(
            lambda output, batch: (output.new_zeros((), dtype=torch.float32), post_process(output, batch)),
            model,
            batches,
            fp32_output=fp32_output,
            backward=False,
        )


def forward_backward(
    loss: LossFunction[Result],
    model: MegatronModel,
    batches: Sequence[MicroBatch],
    *,
    fp32_output: bool,
    force_all_reduce: bool = False,
) -> list[Result]:
    """Run micro-batches forward and backward; gradients are summed over micro-batches and reduced over ranks.

    Args:
        loss: called on the last stage with the output of each micro-batch.
        model: this rank's part, built with gradients.
        batches: this data-parallel rank's micro-batches.
        fp32_output: what the loss declares it needs.
        force_all_reduce: leave whole gradients on every rank, also where the optimizer is distributed.

    Returns:
        What ``loss`` reported, in order, on the last stage; an empty list on others.
    """
    with _mode(model, training=True):
        return run_schedule(
            loss, model, batches, fp32_output=fp32_output, backward=True, force_all_reduce=force_all_reduce
        )


def run_schedule(
    loss: LossFunction[Result],
    model: MegatronModel,
    batches: Sequence[MicroBatch],
    *,
    fp32_output: bool,
    backward: bool,
    force_all_reduce: bool = False,
) -> list[Result]:
    """Run Megatron-Core's schedule for the model's pipeline: plain, 1F1B, or interleaved.

    Args:
        loss: reads the last stage's output.
        model: this rank's part.
        batches: micro-batches.
        fp32_output: passed to `Float16Module`; a float32 model gives float32 either way.
        backward: whether to go backward.
        force_all_reduce: see `forward_backward`.

    Returns:
        What ``loss`` reported, on the last stage.
    """
    groups, sizes = model.groups, model.groups.sizes
    schedule = get_forward_backward_func(
        pp_size=sizes.pipeline, vp_size=sizes.virtual_pipeline if sizes.virtual_pipeline > 1 else None
    )
    with cpu.megatron_calls():
        reported: list[Result] = schedule(
            forward_step_func=_forward_step(loss, fp32_output),
            data_iterator=[iter(batches) for _ in model.chunks],
            model=model.chunks,
            num_microbatches=len(batches),
            seq_length=batches[0].input_ids.shape[1] * sizes.context,
            micro_batch_size=batches[0].input_ids.shape[0],
            forward_only=not backward,
            p2p_communicator=P2PCommunicator(pp_group=groups.pp, config=model.config) if sizes.pipeline > 1 else None,
            pg_collection=groups.collection,
            force_all_reduce=force_all_reduce,
        )
    return reported


def takes_fp32_output(module: torch.nn.Module) -> bool:
    """Whether a model chunk is wrapped in `Float16Module`, whose output precision can be chosen."""
    while not isinstance(module, Float16Module):
        inner = getattr(module, "module", None)
        if not isinstance(inner, torch.nn.Module):
            return False
        module = inner
    return True


def _forward_step(loss: LossFunction[Result], fp32_output: bool) -> Callable[..., Any]:
    def step(
        batches: Iterator[MicroBatch], chunk: torch.nn.Module, return_schedule_plan: bool = False
    ) -> tuple[Any, Callable[[Tensor], Any]]:
        batch = next(batches)
        inputs = batch.model_inputs()
        if takes_fp32_output(chunk):
            inputs["fp32_output"] = fp32_output

        def finish(output: Tensor) -> tuple[Tensor, Tensor, Result]:
            value, report = loss(output, batch)
            # Of three results the schedule keeps the first in place of the output; the count 0 asks for no averaging.
            return value, torch.zeros((), dtype=torch.int32, device=value.device), report

        if return_schedule_plan:  # combined 1F1B: a bare chunk, whose nodes the schedule runs
            return model_schedule_plan(chunk, inputs, fp32_output=fp32_output), finish
        return chunk(**inputs), finish

    return step


@contextmanager
def _mode(model: MegatronModel, *, training: bool) -> Iterator[None]:
    before = [chunk.training for chunk in model.chunks]
    for chunk in model.chunks:
        chunk.train(training)
    try:
        yield
    finally:
        for chunk, mode in zip(model.chunks, before, strict=True):
            chunk.train(mode)


__all__ = ["LossFunction", "PostProcess", "forward_backward", "forward_only", "run_schedule", "takes_fp32_output"]
