"""Attention without Transformer Engine: causal, grouped heads, packed or padded, context-parallel in both layouts.

Megatron-Core's own fallback refuses packed sequences and context parallelism. This one gathers keys and values over
the context-parallel ranks and runs PyTorch's scaled-dot-product attention sequence by sequence, so that a packed
sequence is computed exactly as it would be alone, and no mask over the whole row is ever held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from logparity.layout.context_parallel import ContextLayout, ContextSplit

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one sequence whose queries are on this rank.

    Args:
        local: the rank's rows of the sequence.
        keys: rows of the whole row that hold the sequence.
        mask: bool ``[queries, keys]``; None where the part is the whole sequence and plain causality does.
    """

    local: slice
    keys: slice
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which query may look at which key, for one packed row on one context-parallel rank.

    Args:
        segments: sequences with queries here, in local order; they cover all local rows.
        unshuffle: brings rows gathered rank after rank back into the order of the row; None without context
            parallelism.
    """

    segments: tuple[Segment, ...]
    unshuffle: Tensor | None


def split_row(cu_seqlens: tuple[int, ...], size: int, layout: ContextLayout) -> ContextSplit:
    """How a row lies on context-parallel ranks; on a single one of them any length will do."""
    return ContextSplit(cu_seqlens, size, layout if size > 1 else ContextLayout.CONTIGUOUS)


def plan_attention(split: ContextSplit, rank: int, device: torch.device) -> AttentionPlan:
    """Plan causal attention within each sequence of a split row.

    Args:
        split: the row and how it is shared out.
        rank: context-parallel rank.
        device: where masks go.

    Returns:
        The plan of that rank.
    """
    owned, segments, begin = split.owned(rank), [], 0
    for start, stop in zip(split.cu_seqlens[:-1], split.cu_seqlens[1:], strict=True):
        own = owned[(owned >= start) & (owned < stop)]
        if not len(own):
            continue
        mask = None
        if len(own) < stop - start:
            mask = (own[:, None] >= torch.arange(start, stop)[None]).to(device)
        segments.append(Segment(slice(begin, begin + len(own)), slice(start, stop), mask))
        begin += len(own)
    unshuffle = None
    if split.size > 1:
        unshuffle = torch.argsort(torch.cat([split.owned(r) for r in range(split.size)])).to(device)
    return AttentionPlan(tuple(segments), unshuffle)


@dataclass
class PlannedPacking(PackedSeqParams):  # type: ignore[misc]
    """Megatron-Core's description of a packed row, with what this package's attention and rotary embedding read.

    Args:
        plan: who looks at whom.
        positions: position of each local token in its sequence, where the rotary embedding cannot know it.
    """

    plan: AttentionPlan | None = field(default=None)
    positions: Tensor | None = field(default=None)


class SdpaAttention(MegatronModule):  # type: ignore[misc]
    """The ``core_attention`` of a layer.

    Args:
        config: the model's.
        layer_number: unused; the spec passes it, as what follows.
        attn_mask_type: unused, attention is causal.
        attention_type: unused, attention is self-attention.
        attention_dropout: unused, dropout is 0.
        softmax_scale: factor on the scores; None for ``1 / sqrt(head size)``.
        cp_comm_type: unused.
        pg_collection: gives the context-parallel group.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,  # noqa: ARG002
        attn_mask_type: Any,  # noqa: ARG002
        attention_type: str,  # noqa: ARG002
        attention_dropout: float | None = None,  # noqa: ARG002
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,  # noqa: ARG002
        pg_collection: ProcessGroupCollection | None = None,
        **_unused: Any,
    ) -> None:
        super().__init__(config=config)
        self._scale = softmax_scale
        self._group: ProcessGroup = pg_collection.cp  # type: ignore[union-attr]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,  # noqa: ARG002
        attn_mask_type: Any = None,  # noqa: ARG002
        attention_bias: Tensor | None = None,  # noqa: ARG002
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Attend within each sequence.

        Args:
            query: ``[s, b, heads, d]``, or ``[t, heads, d]`` for a packed row.
            key: the same with the key's heads.
            value: as ``key``.
            attention_mask: unused.
            attn_mask_type: unused.
            attention_bias: unused.
            packed_seq_params: a `PlannedPacking` for a packed row; None for a padded batch.

        Returns:
            ``[s, b, heads * d]`` or ``[t, heads * d]``.
        """
        flat = query.dim() == 3
        if flat:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        plan = self._plan(query, packed_seq_params)
        if plan.unshuffle is not None:
            key, value = (_gather_rows(x, self._group)[plan.unshuffle] for x in (key, value))
        parts = [self._attend(query[s.local], key[s.keys], value[s.keys], s.mask) for s in plan.segments]
        attended = (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(2)
        return attended.squeeze(1) if flat else attended

    def _plan(self, query: Tensor, packing: PackedSeqParams | None) -> AttentionPlan:
        if isinstance(packing, PlannedPacking) and packing.plan is not None:
            return packing.plan
        size = self._group.size()
        split = split_row((0, query.size(0) * size), size, ContextLayout.ZIGZAG)
        return plan_attention(split, self._group.rank(), query.device)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # [b, heads, s, d]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self._scale, enable_gqa=q.size(1) != k.size(1)
        )
        return out.permute(2, 0, 1, 3)


def _gather_rows(rows: Tensor, group: ProcessGroup) -> Tensor:
    gathered: Tensor = _GatherRows.apply(rows, group)  # type: ignore[no-untyped-call]
    return gathered


# PyTorch 2.13 renamed them and warns of the old names.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _GatherRows(torch.autograd.Function):
    """Every rank's rows after each other; backward sums every rank's gradient of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        whole = rows.new_empty(rows.size(0) * group.size(), *rows.shape[1:])
        _ALL_GATHER(whole, rows.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient.new_empty(gradient.size(0) // ctx.group.size(), *gradient.shape[1:])
        _REDUCE_SCATTER(own, gradient.contiguous(), group=ctx.group)
        return own, None


__all__ = ["AttentionPlan", "PlannedPacking", "SdpaAttention", "Segment", "plan_attention", "split_row"]
