"""A loss of 0 that keeps a rank without tokens in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def graph_anchor(logits: Tensor) -> Tensor:
    """Zero that depends on ``logits`` without reading them.

    A rank without active tokens must still take part in backward, or the others wait for its gradients. The common
    ``0 * logits.sum()`` reads everything once and is NaN where the sum overflows, as it does in fp16, or where any
    entry is infinite.

    Args:
        logits: any shape and floating dtype, any contents.

    Returns:
        Scalar 0 in float32, with gradient link; the gradient is a zero of the logits' shape and dtype.

    Memory: one element forward, one backward.
    """
    anchor: Tensor = _Anchor.apply(logits)  # type: ignore[no-untyped-call]
    return anchor


class _Anchor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.shape, ctx.dtype, ctx.device = logits.shape, logits.dtype, logits.device
        return torch.zeros((), dtype=torch.float32, device=logits.device)

    @staticmethod
    def backward(ctx: Any, _grad: Tensor) -> Tensor:
        return torch.zeros((), dtype=ctx.dtype, device=ctx.device).expand(ctx.shape)
