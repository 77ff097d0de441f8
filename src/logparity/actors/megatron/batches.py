"""A micro-batch as this rank's model reads it: its tokens, its packing, and the rows that predict its responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logparity.actors.megatron.attention import PlannedPacking, plan_attention, split_row
from logparity.actors.sharing import MicroBatchSize, plan_micro_batches
from logparity.errors import InputError
from logparity.layout.context_parallel import ContextLayout, ContextSplit
from logparity.layout.packed import PackedBatch, pack_sequences
from logparity.records import BoolArray, TokenBatch

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams
    from torch import Tensor

    from logparity.actors.megatron.groups import ParallelGroups


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``n`` wanted response tokens on this rank, and the tokens the model has to see for them.

    Args:
        input_ids: int64 ``[b, s]``: this context-parallel rank's share.
        position_ids: int64 ``[b, s]``.
        packing: description of a packed row; None for a padded batch.
        rows: int64 ``[n]``: rows of the flattened logits ``[b * s, V]`` that predict the targets.
        targets: int64 ``[n]``.
        sequence_ids: int64 ``[n]``: the sequence of each target, counted within the micro-batch.
        positions: int64 ``[n]``: index of each target in its response.
        where: int64 ``[n]``: index of each target among all response tokens of the whole batch.
        temperature: float32 ``[n]``.
        keys: keys of its sequences.
        extra: further keyword arguments of the model, e.g. multimodal inputs.
    """

    input_ids: Tensor
    position_ids: Tensor
    packing: PackedSeqParams | None
    rows: Tensor
    targets: Tensor
    sequence_ids: Tensor
    positions: Tensor
    where: Tensor
    temperature: Tensor
    keys: tuple[str, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments of the model's forward."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "attention_mask": None,
            "packed_seq_params": self.packing,
            **self.extra,
        }


def micro_batches(
    batch: TokenBatch,
    size: MicroBatchSize,
    groups: ParallelGroups,
    device: torch.device,
    *,
    wanted: Sequence[BoolArray] | None = None,
    packed: bool = True,
    extra: Sequence[Mapping[str, Any]] | None = None,
) -> list[MicroBatch]:
    """This rank's micro-batches of a batch that every rank holds whole.

    Args:
        batch: the whole batch, the same on every rank.
        size: how large a micro-batch may be.
        groups: this rank's groups.
        device: where the tensors go.
        wanted: per sequence, which response tokens are asked for; None for all.
        packed: one row without padding between unlike lengths (thd), else rows padded to the longest (bshd).
        extra: per sequence, further model inputs; micro-batches must then hold one sequence each.

    Returns:
        The same number on every rank, some perhaps without a sequence.

    Raises:
        InputError: a sequence exceeds the size, or the layouts do not go together.
    """
    sizes = groups.sizes
    contiguous = sizes.context > 1 and sizes.context_layout is ContextLayout.CONTIGUOUS
    if contiguous and not packed:
        raise InputError("context_layout: contiguous needs packed=True; padded batches are shared out in zigzag.")
    if extra is not None and size.sequences != 1:
        raise InputError("extra: model inputs per sequence need micro_batch_sequences=1.")
    lengths = [len(p) + len(r) for p, r in zip(batch.prompt_ids, batch.response_ids, strict=True)]
    plan = plan_micro_batches(
        lengths,
        batch.keys,
        size,
        ranks=groups.dp.size(),
        packed=packed,
        multiple=sizes.token_multiple,
        count_multiple=sizes.pipeline if sizes.virtual_pipeline > 1 else 1,
    )
    chosen = plan[groups.dp.rank()]
    least = 1
    if sizes.virtual_pipeline > 1:  # stages of an interleaved pipeline exchange activations of one shape
        if not packed:
            raise InputError(
                "virtual_pipeline: interleaving needs packed=True, where micro-batches can be equally long."
            )
        least = max(sum(-(-lengths[i] // sizes.token_multiple) * sizes.token_multiple for i in part) for part in chosen)
    build = _Builder(batch, groups, device, wanted, packed, max(least, 1))
    return [build.micro_batch(part, extra[part[0]] if extra and part else {}) for part in chosen]


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds micro-batches of one batch; ``least`` is the shortest row, in tokens."""

    batch: TokenBatch
    groups: ParallelGroups
    device: torch.device
    wanted: Sequence[BoolArray] | None
    packed: bool
    least: int

    def micro_batch(self, chosen: list[int], extra: Mapping[str, Any]) -> MicroBatch:
        batch, groups, device, packed = self.batch, self.groups, self.device, self.packed
        part = batch.select(chosen)
        row = self._row(part, None if self.wanted is None else [self.wanted[i] for i in chosen])
        cu_seqlens = tuple(row.cu_seqlens.tolist())
        split = split_row(cu_seqlens, groups.cp.size(), groups.sizes.context_layout)
        rank = groups.cp.rank()
        picked, rows = split.local_rows(row.responses.rows, rank)
        ids, positions = (split.split(x[0], rank) for x in (row.input_ids, row.position_ids))
        width = len(ids) if packed else cu_seqlens[1] // groups.cp.size()
        owners = row.responses.sequence_ids[picked]
        index = row.responses.positions[picked]
        temperature = torch.from_numpy(part.temperature if chosen else np.ones(1, dtype=np.float32))
        return MicroBatch(
            input_ids=ids.view(-1, width).to(device),
            position_ids=positions.view(-1, width).to(device),
            packing=_packing(row, split, rank, positions, device) if packed else None,
            rows=rows.to(device),
            targets=row.targets[picked].to(device),
            sequence_ids=owners.to(device),
            positions=index.to(device),
            where=(self._starts(chosen)[owners] + index).to(device),
            temperature=temperature[owners].to(device),
            keys=part.keys if chosen else ("",),
            extra=extra,
        )

    def _row(self, part: TokenBatch, wanted: list[BoolArray] | None) -> PackedBatch:
        """The sequences one after another, and padding up to the least length; for a padded batch all equally long."""
        multiple = self.groups.sizes.token_multiple
        prompts, responses = list(part.prompt_ids), list(part.response_ids)
        lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
        missing = self.least - sum(-(-length // multiple) * multiple for length in lengths)
        if not prompts or (self.packed and missing > 0):
            prompts.append(np.zeros(max(missing, 1), dtype=np.int64))
            responses.append(np.zeros(0, dtype=np.int64))
            wanted = None if wanted is None else [*wanted, np.zeros(0, dtype=np.bool_)]
            lengths.append(len(prompts[-1]))
        if not self.packed:
            multiple = -(-max(lengths) // multiple) * multiple
        return pack_sequences(prompts, responses, wanted=wanted, multiple=multiple)

    def _starts(self, chosen: list[int]) -> Tensor:
        """Where each sequence's response begins among all response tokens of the whole batch."""
        starts = np.concatenate([[0], np.cumsum([len(r) for r in self.batch.response_ids])]).astype(np.int64)
        return torch.from_numpy(starts[chosen] if chosen else starts[:1])


def _packing(
    row: PackedBatch, split: ContextSplit, rank: int, positions: Tensor, device: torch.device
) -> PlannedPacking:
    # Padding counts as part of its sequence: under causal attention no real token looks at it.
    contiguous = split.size > 1 and split.layout is ContextLayout.CONTIGUOUS
    bounds = row.cu_seqlens.to(device)
    return PlannedPacking(
        qkv_format="sbhd" if contiguous else "thd",  # thd would rotate by zigzag positions
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=row.max_length,
        max_seqlen_kv=row.max_length,
        plan=plan_attention(split, rank, device),
        positions=positions.to(device) if contiguous else None,
    )


__all__ = ["MicroBatch", "micro_batches"]
