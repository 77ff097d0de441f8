"""Tensor parallelism by DTensor: matrices and vocabulary shared out as the model family's own plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from logparity.errors import InputError
from logparity.parallel.vocab import VocabShard

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUMMED = "replicated_with_grad_allreduce"
"""A weight that every rank holds whole and applies to its own heads: its gradient is a sum over ranks."""


def share_matrices(model: PreTrainedModel, mesh: DeviceMesh) -> VocabShard:
    """Leave this rank's part of every matrix in the model, and of the vocabulary in embedding and LM head.

    Args:
        model: whole, on the mesh's kind of device or the CPU; changed in place.
        mesh: one-dimensional: the ranks that share.

    Returns:
        The columns of the vocabulary that this rank's LM head computes.

    Raises:
        InputError: the family has no plan, or one with parts that are not known here; heads do not divide; or
            embedding or LM head do more than look up and multiply.
    """
    plan = family_plan(model)
    _require_heads(model, mesh.size())
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel() if style == "colwise" else RowwiseParallel()
        for name, style in plan.items()
        if style != SUMMED
    }
    embedding, head = _plain_ends(model)
    tied = embedding.weight is head.weight
    parallelize_module(model.base_model, mesh, styles)
    parallelize_module(embedding, mesh, RowwiseParallel(input_layouts=Replicate()))
    parallelize_module(head, mesh, ColwiseParallel(output_layouts=Shard(-1)))
    if tied:
        head.weight = embedding.weight
    return _columns(head.get_parameter("weight"), mesh)


def family_plan(model: PreTrainedModel) -> dict[str, str]:
    """The family's plan for its decoder: module name with ``*`` for a layer's number, and style.

    Args:
        model: the causal language model.

    Returns:
        The plan, never empty.

    Raises:
        InputError: there is none, or it has styles that are not known here.
    """
    plan = dict(getattr(model.config.get_text_config(), "base_model_tp_plan", None) or {})
    unknown = sorted({style for style in plan.values() if style not in ("colwise", "rowwise", SUMMED)})
    if not plan or unknown:
        reason = f"its plan has {', '.join(unknown)}" if unknown else "it has no tensor-parallel plan"
        raise InputError(
            f"tensor: expected 1 for {model.config.model_type}, since {reason}. Set tensor = 1, or use "
            "actor.backend = 'megatron'."
        )
    return plan


def summed_weights(model: PreTrainedModel) -> frozenset[str]:
    """Names of the weights whose gradient is to be summed over the tensor-parallel ranks."""
    patterns = [name.split(".") for name, style in family_plan(model).items() if style == SUMMED]
    prefix = f"{model.base_model_prefix}."
    return frozenset(
        name
        for name, _ in model.named_parameters()
        for parts in [name.removeprefix(prefix).split(".")[:-1]]
        if any(_matches(parts, pattern) for pattern in patterns)
    )


def _matches(parts: list[str], pattern: list[str]) -> bool:
    return len(parts) == len(pattern) and all(
        wanted in ("*", part) for part, wanted in zip(parts, pattern, strict=True)
    )


def _plain_ends(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """Embedding and LM head, where they are no more than a lookup and a matrix."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for module, expected in ((embedding, nn.Embedding), (head, nn.Linear)):
        if type(module) is not expected:
            raise InputError(
                f"tensor: expected 1 for {model.config.model_type}, since its {type(module).__name__} is more than an "
                f"{expected.__name__}. Set tensor = 1, or use actor.backend = 'megatron'."
            )
    return embedding, head


def _require_heads(model: PreTrainedModel, ranks: int) -> None:
    config = model.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, name, None)
        if count is not None and count % ranks:
            raise InputError(f"tensor: expected a size that divides {name} = {count}, got {ranks}.")


def _columns(weight: nn.Parameter, mesh: DeviceMesh) -> VocabShard:
    assert isinstance(weight, DTensor)
    rows, step = weight.shape[0], -(-weight.shape[0] // mesh.size())
    start = min(mesh.get_local_rank() * step, rows)
    return VocabShard(start, min(start + step, rows), mesh.get_group())


__all__ = ["family_plan", "share_matrices", "summed_weights"]
