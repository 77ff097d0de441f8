"""The last layer of a critic: one number per token in place of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

if TYPE_CHECKING:
    from megatron.core.transformer import TransformerConfig
    from torch.distributed import ProcessGroup


class ValueHead(torch.nn.Module):
    """``values = hidden @ weight.T + bias`` in float32, whole on every tensor-parallel rank.

    Zero until trained or loaded: no random state, and no advantage is invented before anything was learned.

    Args:
        config: the model's.
        group: tensor-parallel group.
    """

    def __init__(self, config: TransformerConfig, group: ProcessGroup) -> None:
        super().__init__()
        place = None if config.use_cpu_initialization else torch.device("cuda", torch.cuda.current_device())
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype, device=place))
        self.bias = torch.nn.Parameter(torch.zeros(1, dtype=config.params_dtype, device=place))
        self._gathers = config.sequence_parallel
        self._group = group

    def forward(self, hidden: Tensor, weight: Tensor | None = None, **_unused: Any) -> tuple[Tensor, None]:
        """Values ``[s, b, 1]`` of hidden states ``[s, b, H]``, in the place and form of an output layer.

        Args:
            hidden: this rank's share of the tokens under sequence parallelism.
            weight: unused; a tied LM head would pass the embedding.
            **_unused: what an output layer takes.

        Returns:
            float32 values, and no bias to add later.
        """
        del weight
        if self._gathers:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False, group=self._group)
        return torch.nn.functional.linear(hidden.float(), self.weight.float(), self.bias.float()), None


__all__ = ["ValueHead"]
