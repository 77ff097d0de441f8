"""What actor and critic share: a model on this rank, its optimizer, its micro-batches, its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from logparity.actors.megatron import cpu
from logparity.actors.megatron.batches import MicroBatch, micro_batches
from logparity.actors.megatron.build import MegatronModel, build_model
from logparity.actors.megatron.checkpoint import load_checkpoint, save_checkpoint
from logparity.actors.megatron.collect import collect_metrics, collect_tokens
from logparity.actors.megatron.config import MegatronConfig
from logparity.actors.megatron.family import read_family
from logparity.actors.megatron.forward import LossFunction, forward_backward
from logparity.actors.megatron.groups import ParallelGroups
from logparity.actors.megatron.optimizer import ShardedOptimizer
from logparity.actors.megatron.training import Report
from logparity.actors.megatron.weights import load_weights
from logparity.actors.optimizer import OptimizerConfig
from logparity.actors.step_metrics import step_metrics
from logparity.actors.tensors import check_batch
from logparity.models.loading import as_dtype
from logparity.records import BoolArray, FloatArray, TokenBatch


class MegatronEngine:
    """A model spread over ranks, and what it takes to run and step it.

    Args:
        model_folder: a local Hugging Face folder that every rank sees.
        groups: this rank's process groups.
        optimizer: how weights are updated.
        config: everything else.
        value_head: end in values rather than logits.
    """

    def __init__(
        self,
        model_folder: str | Path,
        groups: ParallelGroups,
        optimizer: OptimizerConfig | None,
        config: MegatronConfig | None,
        *,
        value_head: bool = False,
    ) -> None:
        self.config = config or MegatronConfig()
        self.groups = groups
        self.family = read_family(model_folder)
        self._value_head = value_head
        self.model = self.build(trained=True)
        self.optimizer = ShardedOptimizer(
            self.model,
            optimizer or OptimizerConfig(),
            self.config.decay,
            distributed=self.config.distributed_optimizer,
            initial_loss_scale=self.config.initial_loss_scale,
        )
        load_weights(self.model, self.optimizer.set_master)

    def build(self, *, trained: bool) -> MegatronModel:
        """The folder's model on this rank, with uninitialised weights; ``trained`` makes room for gradients."""
        return build_model(
            self.family,
            self.groups,
            as_dtype(self.config.dtype),
            trained=trained,
            distributed_optimizer=self.config.distributed_optimizer and trained,
            recompute_layers=self.config.recompute_layers and trained,
            overlap_experts=self.config.overlap_experts and trained,
            value_head=self._value_head,
            vocab_multiple=self.config.vocab_multiple,
        )

    def micro_batches(
        self,
        batch: TokenBatch,
        wanted: Sequence[BoolArray] | None = None,
        extra: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[MicroBatch]:
        """This rank's share of a batch, checked.

        Args:
            batch: the whole batch.
            wanted: per sequence, which response tokens are asked for; None for all.
            extra: per sequence, further model inputs.

        Returns:
            Micro-batches, as many on every rank.
        """
        check_batch(batch, self.family.folder)
        return micro_batches(
            batch,
            self.config.micro_batch,
            self.groups,
            cpu.device(),
            wanted=wanted,
            packed=self.config.packed,
            extra=extra,
        )

    def collect(self, values: list[Tensor], batches: list[MicroBatch], batch: TokenBatch) -> tuple[FloatArray, ...]:
        """Per-token values of the last stage's ranks as one array per response, on every rank."""
        return collect_tokens(values, batches, batch.response_ids, self.groups)

    def backward(
        self, loss: LossFunction[Report], tokens: TokenBatch, *, fp32_output: bool, whole: bool = False
    ) -> list[Report]:
        """Sum the step's gradients over micro-batches and ranks.

        Args:
            loss: reads the last stage's output of each micro-batch.
            tokens: the whole step's batch; inactive tokens are left out.
            fp32_output: what the loss declares it needs of the output.
            whole: leave unsharded gradients on every rank, also under a distributed optimizer.

        Returns:
            Reports of the last stage's micro-batches.
        """
        self.optimizer.zero_grad()
        batches = self.micro_batches(tokens, wanted=tokens.response_mask)
        return forward_backward(loss, self.model, batches, fp32_output=fp32_output, force_all_reduce=whole)

    def step(self, prefix: str, reports: list[Report]) -> dict[str, float]:
        """Step the optimizer with the gradients there are, and report.

        Args:
            prefix: put before the step's own metrics.
            reports: of the last stage's micro-batches.

        Returns:
            The objective's metrics and the step's, the same on every rank.
        """
        result = self.optimizer.step()
        self.optimizer.zero_grad()
        loss, metrics = collect_metrics([r[0] for r in reports], [r[1] for r in reports], self.groups)
        scale = {f"{prefix}/loss_scale": self.optimizer.loss_scale} if self.model.config.fp16 else {}
        return metrics | step_metrics(prefix, loss, result) | scale

    def save_checkpoint(self, folder: Path) -> None:
        """Write weights, optimizer, schedule, and generators into an existing, empty folder that all ranks see."""
        save_checkpoint(folder, self.model, self.optimizer)

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote, also under other parallel sizes.

        Args:
            folder: the checkpoint.

        Raises:
            ModelError: it cannot be read or belongs to another model.
        """
        load_checkpoint(folder, self.model, self.optimizer)


__all__ = ["MegatronEngine"]
