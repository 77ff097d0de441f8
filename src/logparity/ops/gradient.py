r"""Gradient of the scores with respect to the logits, recomputed row chunk by row chunk from row statistics.

With ``p = softmax``, ``q`` the same over the support, and upstream gradients ``g`` (log-prob), ``h`` (entropy), ``s``
(supported log-prob), all at temperature ``tau`` and for target ``t``::

    d/dy_j = (1/tau) * [ g (1[j=t] - p_j)  -  h p_j (log p_j + entropy)  +  s (1[j=t] - q_j) ]

Off the target this is ``exp(z_j) * (constant + slope * z_j)`` with ``z_j`` the exponent below the row's maximum; at the
target it is formed as a whole in float64, so that ``1 - p_t`` does not cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from logparity.ops.blocks import LN_2, BlockGrid, exponents_
from logparity.ops.options import Scoring
from logparity.ops.rows import RowChunk, RowView, row_chunks
from logparity.ops.scratch import Scratch, scratch_rows
from logparity.ops.statistics import shaped_elements, working_dtype
from logparity.ops.totals import RowTotals
from logparity.ops.tree import FLOOR


@dataclass(frozen=True, slots=True)
class Upstream:
    """Gradients that reach the scores, float64 ``[N]``; None where none does.

    Args:
        log_probs: of the log-probs.
        entropy: of the entropy.
        support_log_probs: of the supported log-probs.
    """

    log_probs: Tensor | None
    entropy: Tensor | None = None
    support_log_probs: Tensor | None = None

    @classmethod
    def of(cls, *gradients: Tensor | None) -> Upstream:
        """From the gradients that autograd hands over."""
        return cls(*(None if each is None else each.detach().reshape(-1).to(torch.float64) for each in gradients))

    def active(self) -> Tensor | None:
        """Whether any gradient of a target is not 0, bool ``[N]``; None where there are no gradients at all."""
        present = [each != 0 for each in (self.log_probs, self.entropy, self.support_log_probs) if each is not None]
        return torch.stack(present).any(0) if present else None

    def select(self, positions: Tensor) -> Upstream:
        """The gradients of some targets."""
        fields = (self.log_probs, self.entropy, self.support_log_probs)
        return Upstream(*(None if each is None else each[positions] for each in fields))


@dataclass(frozen=True, slots=True)
class GradientTerms:
    """Per-row numbers that turn exponents into gradients, float64 ``[N]``.

    Args:
        reference: the row's maximum.
        constant: factor of ``exp(z)``.
        slope: factor of ``exp(z) * z2``, ``z2 = z / ln 2``; None without entropy gradient.
        target: gradient at the target's column.
        support: factor of ``exp`` over the support, off the target; None without.
    """

    reference: Tensor
    constant: Tensor
    slope: Tensor | None
    target: Tensor
    support: Tensor | None


def gradient_terms(totals: RowTotals, upstream: Upstream, scoring: Scoring) -> GradientTerms:
    """The per-row numbers of the formula above, times the logits' scale; exactly 0 for rows without gradient."""
    rate = scoring.distribution.rate()
    rate = (rate.squeeze(-1) if isinstance(rate, Tensor) else rate) * scoring.distribution.scale
    inverse_sum = (-totals.log_sum).exp()
    constant = torch.zeros_like(totals.max)
    target, slope, support = torch.zeros_like(constant), None, None
    if upstream.log_probs is not None:
        constant -= upstream.log_probs
        target -= upstream.log_probs * totals.log_probs.expm1()
    if upstream.entropy is not None and totals.entropy is not None:
        constant -= upstream.entropy * (totals.entropy - totals.log_sum)
        slope = upstream.entropy * inverse_sum * (-LN_2 * rate)
        surprise = (totals.log_probs + totals.entropy).clamp(min=FLOOR)  # p log p = 0 at p = 0
        target -= upstream.entropy * totals.log_probs.exp() * surprise
    if upstream.support_log_probs is not None and totals.support_log_probs is not None:
        assert totals.support_log_sum is not None
        target -= upstream.support_log_probs * totals.support_log_probs.expm1()
        support = -upstream.support_log_probs * rate * (-totals.support_log_sum).exp()
    return GradientTerms(totals.max, constant * inverse_sum * rate, slope, target * rate, support)


def write_gradient(
    logits: Tensor, out: Tensor, scoring: Scoring, grid: BlockGrid, totals: RowTotals, upstream: Upstream
) -> None:
    """Write the gradient of the scored rows and counted columns into ``out``; other columns of those rows get 0.

    Args:
        logits: ``[.., V_local]``, as they were in forward.
        out: of the same shape; may be the logits themselves: every row is read before it is written.
        scoring: what was asked.
        grid: which columns are held and count.
        totals: statistics of whole rows.
        upstream: gradients that reach the scores.
    """
    if out.shape[-1] > grid.owned:
        # Padding columns, of every row: they never entered the softmax.
        out[..., grid.owned :].zero_()
    if grid.owned and len(scoring):
        _Writer(logits, out, scoring, grid, totals, upstream).run()


class _Writer:
    """Holds the scratches and per-row numbers while the chunks go by."""

    def __init__(
        self, logits: Tensor, out: Tensor, scoring: Scoring, grid: BlockGrid, totals: RowTotals, upstream: Upstream
    ) -> None:
        dtype = working_dtype(logits.dtype)
        self._source, self._sink = RowView(logits, grid.owned), RowView(out, grid.owned)
        self._scoring, self._grid = scoring, grid
        self._terms = gradient_terms(totals, upstream, scoring)
        scratches = 1 + (self._terms.slope is not None) + (scoring.distribution.softcap is not None)
        rows = scratch_rows(grid.width, dtype.itemsize, scratches, scoring.chunk_size)
        self._size = min(rows, len(scoring))
        self._scratch = Scratch(self._size, grid.width, dtype, logits.device)
        self._products = None
        if self._terms.slope is not None:
            self._products = Scratch(self._size, grid.width, dtype, logits.device)
        self._column, self._at_target = self._target_columns(dtype)
        self._place, self._at_support = self._support_entries(totals, dtype)

    def run(self) -> None:
        for chunk in row_chunks(self._scoring.rows, slice(0, len(self._scoring)), self._size):
            values = self._scratch.rows(chunk.count)
            self._grid.pad_(values)
            self._source.read(chunk.rows, self._grid.owned_part(values))
            self._scoring.distribution.shape_(values)
            slope = self._scoring.distribution.slope(values)
            self._off_target(chunk, values)
            self._on_target(chunk, values)
            if slope is not None:
                values.mul_(slope)
            self._sink.write(chunk.rows, self._grid.owned_part(values))

    def _off_target(self, chunk: RowChunk, values: Tensor) -> None:
        part, dtype = chunk.positions, values.dtype
        reference = self._terms.reference[part].to(dtype).unsqueeze(1)
        exponents_(values, reference, self._scoring.distribution.rate(part))
        constant = self._terms.constant[part].to(dtype).unsqueeze(1)
        if self._products is None or self._terms.slope is None:
            self._scratch.exp2_into(chunk.count, self._scratch).mul_(constant)
            return
        values.clamp_(min=FLOOR)
        exponentials = self._scratch.exp2_into(chunk.count, self._products)
        values.mul_(self._terms.slope[part].to(dtype).unsqueeze(1)).add_(constant).mul_(exponentials)

    def _on_target(self, chunk: RowChunk, values: Tensor) -> None:
        part = chunk.positions
        if self._at_support is not None and self._scoring.support is not None and self._place is not None:
            entries = self._scoring.support.span(part)
            row = self._scoring.support.row[entries] - part.start
            values.view(-1).index_add_(0, row * self._grid.width + self._place[entries], self._at_support[entries])
        column, at_target = self._column[part].unsqueeze(1), self._at_target[part].unsqueeze(1)
        # A target on another rank leaves what is there.
        values.scatter_(1, column, torch.where(at_target.isnan(), values.gather(1, column), at_target))

    def _target_columns(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Place of each target in the scratch, and the gradient there; NaN where this rank does not hold it."""
        targets, grid = self._scoring.targets, self._grid
        owned = (targets >= grid.start) & (targets < grid.stop)
        value = self._terms.target.masked_fill(~owned, torch.nan).to(dtype)
        return torch.where(owned, targets - grid.start, 0) + grid.offset, value

    def _support_entries(self, totals: RowTotals, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Place of each support entry in its scratch row, and what it adds there."""
        entries, scoring, grid = self._scoring.support, self._scoring, self._grid
        if entries is None or self._terms.support is None or totals.support_max is None:
            return None, None
        logits = shaped_elements(self._source, scoring, scoring.row_index()[entries.row], entries.id, grid, dtype)
        rate = scoring.distribution.rate()
        factor = rate[entries.row, 0] if isinstance(rate, Tensor) else rate
        added = ((logits - totals.support_max[entries.row]) * factor).exp() * self._terms.support[entries.row]
        counts = (entries.id >= grid.start) & (entries.id < grid.stop) & ~entries.repeated
        # Adding -0.0 changes no bit, not even the sign of a zero.
        added = torch.where(counts, added, -0.0).to(dtype)
        return torch.where(counts, entries.id - grid.start, 0) + grid.offset, added
