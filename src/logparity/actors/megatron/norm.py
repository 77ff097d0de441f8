"""RMS norm of the local layer spec: in the order of operations of the Transformers models it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megatron.core.transformer import TransformerConfig


class RMSNorm(torch.nn.Module):
    """``weight * cast(x / sqrt(mean(x^2) + eps))``, with the mean in float32.

    Megatron-Core's own fallback refuses sequence parallelism, and multiplies by the weight before it rounds to the
    model's dtype; Llama and Qwen round first.

    Args:
        config: gives dtype and sequence parallelism.
        hidden_size: width of the last axis.
        eps: offset under the root.
        **_unused: what other norms of the spec take.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_unused: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=_device(config)))
        # Each tensor-parallel rank sees its share of the tokens only: its gradient is a part of the sum.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


def _device(config: TransformerConfig) -> torch.device | None:
    return None if config.use_cpu_initialization else torch.device("cuda", torch.cuda.current_device())


__all__ = ["RMSNorm"]
