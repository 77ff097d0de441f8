"""From logits to a distribution: softcap, scale, temperature, in that order, and their derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Distribution:
    """How logits become a distribution: ``softmax(scale * cap * tanh(logits / cap) / temperature)``.

    Args:
        softcap: ``cap`` (Gemma); None for none. A logit of -inf stays -inf (a masked column), +inf stays +inf.
        scale: factor on the (capped) logits (Granite, Cohere); > 0.
        temperature: one float, or float64 ``[N]``, one per token.
    """

    softcap: float | None = None
    scale: float = 1.0
    temperature: float | Tensor = 1.0

    def rate(self, rows: slice | None = None) -> float | Tensor:
        """``1 / temperature``: a float, or float64 ``[rows, 1]``."""
        if isinstance(self.temperature, float):
            return 1.0 / self.temperature
        chosen = self.temperature if rows is None else self.temperature[rows]
        return chosen.reciprocal().unsqueeze(-1)

    def shape_(self, values: Tensor) -> Tensor:
        """Apply softcap and scale in place (temperature comes later, off the maximum)."""
        if self.softcap is not None:
            largest = torch.finfo(values.dtype).max
            finite = values.clamp(min=-largest, max=largest)
            values.sub_(finite)  # 0, or the infinity that is to stay
            values.add_(finite.div_(self.softcap).tanh_().mul_(self.softcap))
        return values if self.scale == 1.0 else values.mul_(self.scale)

    def slope(self, shaped: Tensor) -> Tensor | None:
        """``d shaped / d logits / scale`` from shaped values, newly allocated; None where it is 1 everywhere."""
        if self.softcap is None:
            return None
        ratio = (shaped / (self.scale * self.softcap)).clamp_(-1.0, 1.0)  # the clamp takes infinities to slope 0
        return ratio.square_().neg_().add_(1.0)
