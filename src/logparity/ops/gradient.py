r"""Gradient of the scores with respect to the logits: the formula, and what of it is one number per row.

With ``p = softmax``, ``q`` the same over the support, and upstream gradients ``g`` (log-prob), ``h`` (entropy), ``s``
(supported log-prob), all at ``rate = scale / temperature`` and for target ``t``::

    d/dy_j = rate * [ g (1[j=t] - p_j)  -  h p_j (log p_j + entropy)  +  s (1[j=t] - q_j) ]

Off the target this is ``exp(z_j) * (constant + slope * z_j)`` with ``z_j`` the exponent below the row's maximum; at the
target it is formed as a whole in float64, so that ``1 - p_t`` does not cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from logparity.ops.blocks import LN_2
from logparity.ops.options import Scoring
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
    """The per-row numbers of the formula above; exactly 0 for rows without gradient."""
    rate = scoring.distribution.rate()
    rate = rate.squeeze(-1) if isinstance(rate, Tensor) else rate
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
