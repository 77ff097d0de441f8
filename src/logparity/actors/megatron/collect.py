"""Results of ranks back into the order of the batch that every rank was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from logparity.actors.megatron import cpu
from logparity.actors.megatron.batches import MicroBatch
from logparity.losses.base import Metrics, merge_metrics
from logparity.records import FloatArray, IntArray

if TYPE_CHECKING:
    from logparity.actors.megatron.groups import ParallelGroups


def collect_tokens(
    values: Sequence[Tensor], batches: Sequence[MicroBatch], response_ids: Sequence[IntArray], groups: ParallelGroups
) -> tuple[FloatArray, ...]:
    """Per-token values of the whole batch on every rank.

    Each token is scored by one data- and context-parallel rank (and alike by its tensor-parallel ranks); a sum over
    those ranks puts all of them together, and the last stage tells the others.

    Args:
        values: float32 ``[n]`` per micro-batch on the last stage; anything elsewhere.
        batches: the micro-batches they belong to.
        response_ids: the ``B`` responses of the whole batch.
        groups: this rank's groups.

    Returns:
        ``B`` float32 arrays ``[R_b]``.
    """
    lengths = [len(ids) for ids in response_ids]
    whole = torch.zeros(sum(lengths), dtype=torch.float32, device=cpu.device())
    if groups.last_stage:
        for value, batch in zip(values, batches, strict=True):
            whole[batch.where] = value
        dist.all_reduce(whole, group=groups.dp_cp)
    if groups.pp.size() > 1:
        dist.broadcast(whole, src=dist.get_global_rank(groups.pp, groups.pp.size() - 1), group=groups.pp)
    flat = whole.cpu().numpy()
    return tuple(part.copy() for part in np.split(flat, np.cumsum(lengths)[:-1])) if lengths else ()


def collect_metrics(
    losses: Sequence[Tensor], parts: Sequence[Metrics], groups: ParallelGroups
) -> tuple[float, dict[str, float]]:
    """Loss and metrics of the whole step on every rank.

    Args:
        losses: detached loss per micro-batch on the last stage.
        parts: metrics per micro-batch on the last stage.
        groups: this rank's groups.

    Returns:
        The loss, and each metric's mean over its own denominator, left out where nothing was counted.
    """
    result: tuple[float, dict[str, float]] | None = None
    if groups.last_stage:
        merged = merge_metrics(parts)
        names = sorted(merged)
        rows = [[float(sum(float(loss) for loss in losses)), 1.0]]
        rows += [[float(merged[name].numerator), float(merged[name].denominator)] for name in names]
        sums = torch.tensor(rows, dtype=torch.float64, device=cpu.device())
        dist.all_reduce(sums, group=groups.dp_cp)
        (loss, _), *totals = sums.tolist()
        result = loss, {name: top / count for name, (top, count) in zip(names, totals, strict=True) if count}
    found: tuple[float, dict[str, float]] = groups.from_last_stage(result)
    return found


__all__ = ["collect_metrics", "collect_tokens"]
