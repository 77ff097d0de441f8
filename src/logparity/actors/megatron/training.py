"""The last stage's part of a training step: from logits or values to the objective's share of the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from logparity.actors.megatron.batches import MicroBatch
from logparity.actors.megatron.scoring import response_scores, response_values
from logparity.layout.anchor import graph_anchor
from logparity.losses.base import Denominators, LogitPrecision, Metrics, Objective, TokenTensors, ValueTensors
from logparity.losses.sequences import GroupSum
from logparity.records import FloatArray, TrainingBatch, ValueBatch

if TYPE_CHECKING:
    from logparity.actors.megatron.build import MegatronModel
    from logparity.losses.value import ValueObjective

Report = tuple[Tensor, Metrics]


class PolicyLoss:
    """Loss of a policy or SFT objective on a micro-batch's logits.

    Args:
        objective: what is minimised.
        batch: the whole step's batch.
        denominators: counts over the whole step.
        model: this rank's part.
        recompute: keep nothing between forward and backward but the logits; the loss is computed again.
    """

    def __init__(
        self,
        objective: Objective,
        batch: TrainingBatch,
        denominators: Denominators,
        model: MegatronModel,
        *,
        recompute: bool,
    ) -> None:
        self._objective, self._denominators, self._model, self._recompute = objective, denominators, model, recompute
        names = ("old_log_probs", "advantages", "ref_log_probs", "rollout_log_probs")
        given = {name: getattr(batch, name) for name in names}
        self._signals = {name: _joined(arrays) for name, arrays in given.items() if arrays is not None}

    @property
    def fp32_output(self) -> bool:
        """Whether the objective declares that it needs a float32 output."""
        return self._objective.precision is LogitPrecision.FP32

    def __call__(self, output: Tensor, batch: MicroBatch) -> tuple[Tensor, Report]:
        """The micro-batch's share of the loss, and what to report of it."""
        metrics: dict[str, Any] = {}
        if self._recompute:
            loss: Tensor = checkpoint(self._loss, output, batch, metrics, use_reentrant=False, preserve_rng_state=False)
        else:
            loss = self._loss(output, batch, metrics)
        return loss, (loss.detach(), metrics)

    def _loss(self, output: Tensor, batch: MicroBatch, metrics: dict[str, Any]) -> Tensor:
        # Combined 1F1B reads the gradient off a detached alias of the logits, which must not be written over.
        in_place = not self._model.config.overlap_moe_expert_parallel_comm
        log_probs, entropy = response_scores(
            output, batch, self._model.vocabulary, self._objective.entropy, in_place=in_place
        )
        signals: dict[str, Any] = {name: _pick(values, batch) for name, values in self._signals.items()}
        tokens = TokenTensors(
            log_probs=log_probs,
            entropy=entropy,
            **_common(batch, self._model),
            **signals,
        )
        loss, found = self._objective(tokens, self._denominators)
        metrics.update(found)
        return loss if log_probs.numel() else loss + graph_anchor(output)


class ValueLoss:
    """Loss of a value objective on a micro-batch's float32 values.

    Args:
        objective: what is minimised.
        batch: the whole step's batch.
        denominators: counts over the whole step.
        model: this rank's part.
    """

    def __init__(
        self,
        objective: ValueObjective,
        batch: ValueBatch,
        denominators: Denominators,
        model: MegatronModel,
    ) -> None:
        self._objective, self._denominators, self._model = objective, denominators, model
        self._old, self._returns = _joined(batch.old_values), _joined(batch.returns)

    @property
    def fp32_output(self) -> bool:
        """Whether the objective declares that it needs a float32 output."""
        return self._objective.precision is LogitPrecision.FP32

    def __call__(self, output: Tensor, batch: MicroBatch) -> tuple[Tensor, Report]:
        """The micro-batch's share of the loss, and what to report of it."""
        tokens = ValueTensors(
            values=response_values(output, batch),
            old_values=_pick(self._old, batch),
            returns=_pick(self._returns, batch),
            **_common(batch, self._model),
        )
        loss, metrics = self._objective(tokens, self._denominators)
        if not batch.targets.numel():
            loss = loss + graph_anchor(output)
        return loss, (loss.detach(), metrics)


def _common(batch: MicroBatch, model: MegatronModel) -> Mapping[str, Any]:
    return {
        "mask": torch.ones_like(batch.targets, dtype=torch.bool),
        "sequence_ids": batch.sequence_ids,
        "num_sequences": len(batch.keys),
        "sequence_sum": GroupSum(model.groups.cp) if model.groups.cp.size() > 1 else None,
        "keys": batch.keys,
        "positions": batch.positions,
    }


def _joined(arrays: tuple[FloatArray, ...]) -> Tensor:
    """Values of all response tokens of the whole batch."""
    return torch.from_numpy(np.concatenate(arrays).astype(np.float32, copy=False))


def _pick(values: Tensor, batch: MicroBatch) -> Tensor:
    return values[batch.where.to(values.device)].to(batch.targets.device)


__all__ = ["PolicyLoss", "Report", "ValueLoss"]
