"""Results of ranks back into the order of the batch that every rank was given, and errors to every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from logparity.errors import LogparityError
from logparity.losses.base import Metrics, Ratio, merge_metrics
from logparity.records import FloatArray, IntArray


def collect_tokens(
    own: Mapping[int, FloatArray], response_ids: Sequence[IntArray], group: dist.ProcessGroup, device: torch.device
) -> tuple[FloatArray, ...]:
    """Per-token values of the whole batch on every rank; one all-reduce of 4 bytes per token.

    Args:
        own: by index into the batch, the float32 values of the sequences that this rank scored.
        response_ids: the ``B`` responses of the whole batch.
        group: ranks that share the batch out; each sequence is one rank's.
        device: where the group communicates.

    Returns:
        ``B`` float32 arrays ``[R_b]``.
    """
    ends = np.cumsum([len(ids) for ids in response_ids])
    flat = np.zeros(int(ends[-1]), dtype=np.float32)
    for b, values in own.items():
        flat[ends[b] - len(values) : ends[b]] = values
    whole = torch.from_numpy(flat).to(device)
    dist.all_reduce(whole, group=group)
    return tuple(part.copy() for part in np.split(whole.cpu().numpy(), ends[:-1]))


def collect_metrics(loss: float, parts: Sequence[Metrics], group: dist.ProcessGroup) -> tuple[float, dict[str, Ratio]]:
    """Loss and metrics of the whole step on every rank; a rank without tokens may lack the names of the others.

    Args:
        loss: sum over this rank's micro-batches.
        parts: metrics of each.
        group: ranks that share the batch out.

    Returns:
        The loss and the metrics, summed in rank order.
    """
    merged = merge_metrics(parts)
    own = {name: (float(ratio.numerator), float(ratio.denominator)) for name, ratio in merged.items()}
    found: list[tuple[float, dict[str, tuple[float, float]]]] = [(0.0, {})] * group.size()
    dist.all_gather_object(found, (loss, own), group=group)
    return sum(part[0] for part in found), merge_metrics(
        [{name: Ratio(*numbers) for name, numbers in part[1].items()} for part in found]
    )


def raise_together(failure: Exception | None, group: dist.ProcessGroup, device: torch.device) -> None:
    """Raise on every rank where one has failed; without it the others would wait for that one until the timeout.

    Args:
        failure: this rank's, or None.
        group: ranks that would wait.
        device: where the group communicates.

    Raises:
        Exception: this rank's own failure.
        LogparityError: another rank's; says which and why.
    """
    failed = torch.tensor(int(failure is not None), dtype=torch.int32, device=device)
    dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=group)
    if not int(failed):
        return
    texts: list[str | None] = [None] * group.size()
    dist.all_gather_object(texts, None if failure is None else f"{type(failure).__name__}: {failure}", group=group)
    if failure is not None:
        raise failure
    rank, text = next((rank, text) for rank, text in enumerate(texts) if text is not None)
    raise LogparityError(f"data-parallel rank {rank} failed: {text}")


__all__ = ["collect_metrics", "collect_tokens", "raise_together"]
