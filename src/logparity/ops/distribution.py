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
        """``scale / temperature``: a float, or float64 ``[rows, 1]``."""
        # Both are applied after the maximum is taken off: before, either would round a large common offset.
        if isinstance(self.temperature, float):
            return self.scale / self.temperature
        chosen = self.temperature if rows is None else self.temperature[rows]
        return chosen.reciprocal().mul_(self.scale).unsqueeze(-1)

    def shape_(self, values: Tensor) -> Tensor:
        """Apply the softcap in place (scale and temperature come later, off the maximum)."""
        if self.softcap is not None:
            largest = torch.finfo(values.dtype).max
            finite = values.clamp(min=-largest, max=largest)
            values.sub_(finite)  # 0, or the infinity that is to stay
            values.add_(finite.div_(self.softcap).tanh_().mul_(self.softcap))
        return values

    def slope(self, shaped: Tensor) -> Tensor | None:
        """``d shaped / d logits`` from shaped values, newly allocated; None where it is 1 everywhere."""
        if self.softcap is None:
            return None
        ratio = (shaped / self.softcap).clamp_(-1.0, 1.0)  # the clamp takes infinities to slope 0
        return ratio.square_().neg_().add_(1.0)
