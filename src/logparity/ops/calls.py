"""What every public operation does around its numbers: failures shared, ignored targets left out, shapes restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from logparity.ops import checks
from logparity.ops.options import Scoring
from logparity.ops.results import TokenLogProbs
from logparity.ops.totals import totals_bytes
from logparity.parallel.collectives import Exchange, rows_with_room
from logparity.parallel.gather import columns_bytes
from logparity.parallel.groups import resolve_group, speaking_device
from logparity.parallel.vocab import ShardLayout, VocabShard, shard_layout

Run = Callable[[Scoring], TokenLogProbs]


def open_exchange(
    shard: VocabShard | None,
    source: Tensor,
    columns: int,
    targets: Tensor,
    *,
    rows: Tensor | Sequence[int] | None = None,
    impl: str = "auto",
    support: bool = False,
) -> Exchange:
    """The collective of a call, opened before its arguments are checked, so that a failed check can be told.

    Its size comes from arguments that may be wrong on this rank: the number of rows from the logits where they are
    logits, else from the targets.

    Args:
        shard: as the caller gave it.
        source: logits or hidden states, as the caller gave them.
        columns: columns held where there is no shard.
        targets: as the caller gave them.
        rows: as the caller gave them.
        impl: as the caller gave it.
        support: whether there is one.

    Returns:
        The exchange, and in it who holds which columns.

    Raises:
        InputError: the shard is not one: then there is nobody to tell.
        ShardError: on every rank: shards overlap or leave a gap.
    """
    layout, device = find_others(shard, columns, source, targets)
    if layout.alone:
        return Exchange(layout)
    count = _expected_targets(source, targets, rows)
    if impl == "reference":
        size = columns_bytes(rows_with_room(count), layout, torch.float64.itemsize)
    else:
        size = totals_bytes(count, layout, support)
    return Exchange(layout, device, size)


def find_others(shard: VocabShard | None, columns: int, *given: Tensor) -> tuple[ShardLayout, torch.device]:
    """Who holds which columns, and where they communicate, from arguments that may be wrong."""
    checks.vocab_shard(shard)
    device = next((each.device for each in given if isinstance(each, Tensor)), torch.device("cpu"))
    if shard is None:
        return ShardLayout.whole(columns), device
    device = speaking_device(resolve_group(shard.group), device)
    return shard_layout(shard, device), device


def _expected_targets(source: Tensor, targets: Tensor, rows: Tensor | Sequence[int] | None) -> int:
    if rows is None and isinstance(source, Tensor) and source.dim():
        return source.shape[:-1].numel()
    return next((each.numel() for each in (targets, rows) if isinstance(each, Tensor)), 0)


def axis_size(tensor: Tensor, axis: int) -> int:
    """Size of an axis; 1 where there is no such axis, for the checks to complain about."""
    return tensor.shape[axis] if isinstance(tensor, Tensor) and tensor.dim() else 1


def scores_in_shape(asked: Scoring, run: Run, *, may_wait: bool = False) -> TokenLogProbs:
    """Run on the targets that are not ignored; the others score 0. Results come in the shape of the targets.

    Args:
        asked: what is asked.
        run: scores flat targets.
        may_wait: whether to leave ignored rows out even where that waits for the device.

    Returns:
        Scores of all targets.
    """
    return _each(_without_ignored(asked, run, may_wait), lambda values: values.reshape(asked.shape))


def _without_ignored(asked: Scoring, run: Run, may_wait: bool) -> TokenLogProbs:
    ignored = asked.targets == asked.ignore_index
    if may_wait or ignored.device.type == "cpu":
        if not bool(ignored.any()):
            return run(asked)
        kept = ignored.logical_not().nonzero().flatten()
        scores = run(asked.select(kept))
        return _each(scores, lambda values: values.new_zeros(len(asked)).index_copy(0, kept, values))
    # Elsewhere, which targets are ignored is not known without waiting for the device: score them as id 0 and hide it.
    anything = replace(asked, targets=asked.targets.masked_fill(ignored, 0))
    return _each(run(anything), lambda values: values.masked_fill(ignored, 0.0))


def _each(scores: TokenLogProbs, change: Callable[[Tensor], Tensor]) -> TokenLogProbs:
    return TokenLogProbs._make(None if values is None else change(values) for values in scores)
