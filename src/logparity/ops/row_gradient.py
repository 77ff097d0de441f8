"""The gradient of some rows and columns, formed in place of their logits in a scratch."""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.ops.blocks import BlockGrid, exponents_
from logparity.ops.gradient import GradientTerms, Upstream, gradient_terms
from logparity.ops.options import Scoring
from logparity.ops.scratch import Scratch
from logparity.ops.totals import RowTotals
from logparity.ops.tree import FLOOR


class RowGradient:
    """Turns shaped logits into gradients, for any part of the rows and any part of the columns.

    Args:
        totals: statistics of whole rows.
        upstream: gradients that reach the scores.
        scoring: what was asked.
    """

    def __init__(self, totals: RowTotals, upstream: Upstream, scoring: Scoring) -> None:
        self._totals, self._scoring = totals, scoring
        self._terms: GradientTerms = gradient_terms(totals, upstream, scoring)

    @property
    def needs_products(self) -> bool:
        """Whether a second scratch is needed."""
        return self._terms.slope is not None

    def form_(self, scratch: Scratch, part: slice, grid: BlockGrid, products: Scratch | None = None) -> None:
        """Replace shaped logits in the scratch by the gradient with respect to the logits before they were shaped.

        Args:
            scratch: rows of shaped logits, padded to whole blocks by -inf.
            part: which targets' rows they are.
            grid: which columns they are.
            products: a second scratch, where it is needed.
        """
        values = scratch.rows(part.stop - part.start)
        slope = self._scoring.distribution.slope(values)
        support = self._over_support(values, part, grid)
        self._off_target(scratch, values, part, products)
        if support is not None:
            values.view(-1).index_add_(0, *support)
        self._on_target(values, part, grid)
        if slope is not None:
            values.mul_(slope)

    def _off_target(self, scratch: Scratch, values: Tensor, part: slice, products: Scratch | None) -> None:
        terms, dtype = self._terms, values.dtype
        reference = terms.reference[part].to(dtype).unsqueeze(1)
        exponents_(values, reference, self._scoring.distribution.rate(part))
        constant = terms.constant[part].to(dtype).unsqueeze(1)
        if products is None or terms.slope is None:
            scratch.exp2_into(len(values), scratch).mul_(constant)
            return
        values.clamp_(min=FLOOR)
        exponentials = scratch.exp2_into(len(values), products)
        values.mul_(terms.slope[part].to(dtype).unsqueeze(1)).add_(constant).mul_(exponentials)

    def _over_support(self, values: Tensor, part: slice, grid: BlockGrid) -> tuple[Tensor, Tensor] | None:
        """Flat places of the support's entries, and what they add there."""
        entries, factor = self._scoring.support, self._terms.support
        if entries is None or factor is None or self._totals.support_max is None:
            return None
        span = entries.span(part)
        row, token = entries.row[span], entries.id[span]
        counts = (token >= grid.start) & (token < grid.stop) & ~entries.repeated[span]
        column = torch.where(counts, token - grid.start, 0) + grid.offset
        place = (row - part.start) * grid.width + column
        rate = self._scoring.distribution.rate()
        rate = rate[row, 0] if isinstance(rate, Tensor) else rate
        exponents = (values.view(-1)[place].double() - self._totals.support_max[row]) * rate
        added = exponents.exp() * factor[row]
        # Adding -0.0 changes no bit, not even the sign of a zero.
        return place, torch.where(counts, added, -0.0).to(values.dtype)

    def _on_target(self, values: Tensor, part: slice, grid: BlockGrid) -> None:
        targets = self._scoring.targets[part]
        owned = (targets >= grid.start) & (targets < grid.stop)
        column = (torch.where(owned, targets - grid.start, 0) + grid.offset).unsqueeze(1)
        at_target = self._terms.target[part].to(values.dtype).unsqueeze(1)
        # A target elsewhere leaves what is there.
        values.scatter_(1, column, torch.where(owned.unsqueeze(1), at_target, values.gather(1, column)))
