"""From each rank's nodes to the statistics of whole rows: one collective, then the same merge on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid
from logparity.ops.options import Entropy, Scoring
from logparity.ops.results import TokenLogProbs
from logparity.ops.statistics import LocalStatistics
from logparity.ops.tree import Node, Stats, combine, owned_nodes
from logparity.parallel.collectives import Exchange, rows_with_room
from logparity.parallel.vocab import ShardLayout


class RowTotals(NamedTuple):
    """Statistics of whole rows, float64 ``[N]``, equal on every rank.

    Args:
        max: largest shaped logit.
        log_sum: log of the sum of exponentials relative to ``max``. Kept apart from it: one number would be coarse
            where logits share a large offset.
        log_probs: of the targets.
        entropy: of the full vocabulary; None where it was not asked for.
        support_max: like ``max`` over the support alone.
        support_log_sum: like ``log_sum`` over the support alone.
        support_log_probs: of the targets within their supports.
    """

    max: Tensor
    log_sum: Tensor
    log_probs: Tensor
    entropy: Tensor | None = None
    support_max: Tensor | None = None
    support_log_sum: Tensor | None = None
    support_log_probs: Tensor | None = None

    def select(self, positions: Tensor) -> RowTotals:
        """The statistics of some targets."""
        return RowTotals._make(None if each is None else each[positions] for each in self)

    def outputs(self, dtype: torch.dtype) -> TokenLogProbs:
        """The scores, rounded once."""
        return TokenLogProbs(
            self.log_probs.to(dtype),
            None if self.entropy is None else self.entropy.to(dtype),
            None if self.support_log_probs is None else self.support_log_probs.to(dtype),
        )


def gather_totals(local: LocalStatistics, scoring: Scoring, exchange: Exchange) -> RowTotals:
    """Merge the ranks' statistics; one collective, none for a single process.

    Args:
        local: this rank's statistics.
        scoring: what is asked.
        exchange: the collective, with room for `totals_bytes`.

    Returns:
        Statistics of whole rows, the same bits on every rank.

    Raises:
        LogparityError: another rank failed, or was asked for something else.
    """
    rate, layout = scoring.distribution.rate(), exchange.layout
    if layout.alone:
        return _totals(local.nodes, local.support, local.target, scoring)
    width = _payload_nodes(layout, scoring.columns)
    locals_ = [_unpack(each, width, scoring) for each in exchange(_pack(local, width))]
    nodes = combine(_pieces([each.nodes for each in locals_], layout, scoring.columns), scoring.columns, rate)
    support = None
    if scoring.support is not None:
        parts = [each.support for each in locals_ if each.support is not None]
        support = combine(_pieces(parts, layout, scoring.columns), scoring.columns, rate)
    return _totals(nodes, support, _owners_value([each.target for each in locals_], scoring, layout), scoring)


def totals_bytes(count: int, layout: ShardLayout, support: bool) -> int:
    """Bytes to make room for in `gather_totals`, from what every rank knows before it looks at its arguments' values.

    There is room for the entropy's sums even where nobody wants them, for ignored targets, and for the nodes of the
    whole vocabulary (fewer valid columns make fewer nodes): ranks that disagree in any of these can exchange still.

    Args:
        count: number of targets.
        layout: who holds which columns.
        support: whether there is one.

    Returns:
        Number of bytes.
    """
    fields = 3 + 2 * support
    width = fields * _payload_nodes(layout, layout.columns) + 1
    return rows_with_room(count) * width * torch.float64.itemsize


def _payload_nodes(layout: ShardLayout, columns: int) -> int:
    return max(BlockGrid.of(start, stop, columns).nodes for start, stop in layout.bounds)


def _pack(local: LocalStatistics, width: int) -> Tensor:
    fields = [*local.nodes, *(local.support or ())]
    missing = width - local.nodes.max.shape[1]
    padded = [torch.nn.functional.pad(field, (0, missing)) for field in fields if field is not None]
    return torch.cat([*padded, local.target.unsqueeze(1)], dim=1)


def _unpack(payload: Tensor, width: int, scoring: Scoring) -> LocalStatistics:
    fields = list(torch.split(payload[:, :-1], width, dim=1))
    weighted = fields.pop(2) if scoring.entropy is not Entropy.NONE else None
    support = Stats(*fields[2:4]) if scoring.support is not None else None
    return LocalStatistics(Stats(fields[0], fields[1], weighted), payload[:, -1], support)


def _pieces(parts: Sequence[Stats], layout: ShardLayout, columns: int) -> list[tuple[Node, Stats]]:
    return [
        (node, stats.sets(slice(place, place + 1)))
        for stats, (start, stop) in zip(parts, layout.bounds, strict=True)
        for place, node in enumerate(owned_nodes(start, min(stop, columns), columns))
    ]


def _owners_value(values: Sequence[Tensor], scoring: Scoring, layout: ShardLayout) -> Tensor:
    """The target's logit from the rank that holds its column; NaN where none does."""
    stops = torch.tensor([stop for _, stop in layout.bounds], device=scoring.targets.device)
    owner = torch.bucketize(scoring.targets, stops, right=True).clamp_(max=len(values) - 1)
    return torch.stack(list(values)).gather(0, owner.unsqueeze(0)).squeeze(0)


def _totals(nodes: Stats, support: Stats | None, target: Tensor, scoring: Scoring) -> RowTotals:
    rate = scoring.distribution.rate()
    rate = rate.squeeze(-1) if isinstance(rate, Tensor) else rate
    top, total = nodes.max[:, 0], nodes.sum[:, 0]
    log_sum = total.log()
    entropy = None if nodes.weighted is None else log_sum - nodes.weighted[:, 0] / total
    log_probs = (target - top) * rate - log_sum
    if support is None:
        return RowTotals(top, log_sum, log_probs, entropy)
    support_top, support_log_sum = support.max[:, 0], support.sum[:, 0].log()
    supported = (target - support_top) * rate - support_log_sum
    return RowTotals(top, log_sum, log_probs, entropy, support_top, support_log_sum, supported)
