"""AdamW on each rank's part of the weights, with one norm and one verdict for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from logparity.actors.optimizer import MasterOptimizer, OptimizerConfig


class ShardedOptimizer(MasterOptimizer):
    """`MasterOptimizer` over parts of weights: every rank clips by the same norm, and all step or none does.

    Args:
        parts: this rank's part of every weight, by name.
        config: how they are updated.
        groups: process groups that the weights are spread over.
        device: where the groups communicate.
        counted: names whose part exists only on this rank, or is counted here for those that hold a copy.
    """

    def __init__(
        self,
        parts: Mapping[str, torch.nn.Parameter],
        config: OptimizerConfig,
        groups: Sequence[dist.ProcessGroup],
        device: torch.device,
        counted: frozenset[str],
    ) -> None:
        super().__init__(parts, config)
        self._groups, self._device, self._counted = groups, device, counted

    def _norm(self) -> Tensor:
        grads = [w.grad for name, w in self._weights.items() if w.grad is not None and name in self._counted]
        # In float64: a square overflows float32 long before the norm does.
        square = torch.nn.utils.get_total_norm(grads).to(self._device, torch.float64).square()
        for group in self._groups:
            dist.all_reduce(square, group=group)
        return square.sqrt().float()

    def _bad(self) -> list[bool]:
        bad = torch.tensor(super()._bad(), dtype=torch.int32, device=self._device)
        for group in self._groups:
            dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=group)
        return [bool(flag) for flag in bad.tolist()]


__all__ = ["ShardedOptimizer"]
