"""Actor on Megatron-Core: one object per rank, every rank called with the same batch, every rank told everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from logparity.actors.denominators import step_denominators
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
from logparity.actors.megatron.report import step_metrics
from logparity.actors.megatron.scoring import compute_log_prob, compute_values
from logparity.actors.megatron.training import PolicyLoss, Report, ValueLoss
from logparity.actors.megatron.weights import each_weight, load_weights
from logparity.actors.optimizer import OptimizerConfig
from logparity.actors.tensors import check_batch
from logparity.errors import InputError
from logparity.losses.base import Denominators, Objective
from logparity.models.loading import as_dtype
from logparity.records import BoolArray, FloatArray, ScoredTokens, TokenBatch, TrainingBatch

if TYPE_CHECKING:
    from logparity.losses.value import ValueObjective


class MegatronActor:
    """Scores and trains a causal language model spread over ranks.

    Every method is collective: all ranks call it with the same arguments and get the same results. Which rank computes
    what follows from the groups.

    Args:
        model_folder: a local Hugging Face folder that every rank sees.
        groups: this rank's process groups.
        objective: the loss that `train_step` minimises; None makes an actor that only scores.
        optimizer: how weights are updated.
        config: everything else.
        reference: keep a frozen copy of the folder's weights for `score_reference`.

    Raises:
        ModelError: the folder is incomplete, or its model is not supported.
        InputError: the model does not divide into the parallel sizes.
    """

    value_head = False

    def __init__(
        self,
        model_folder: str | Path,
        groups: ParallelGroups,
        objective: Any = None,
        optimizer: OptimizerConfig | None = None,
        *,
        config: MegatronConfig | None = None,
        reference: bool = False,
    ) -> None:
        self._config = config or MegatronConfig()
        self._groups = groups
        self._objective = objective
        self._family = read_family(model_folder)
        self._model = self._build(trained=True)
        self._optimizer = ShardedOptimizer(
            self._model,
            optimizer or OptimizerConfig(),
            self._config.decay,
            distributed=self._config.distributed_optimizer,
            initial_loss_scale=self._config.initial_loss_scale,
        )
        load_weights(self._model, self._optimizer.set_master)
        self._reference: MegatronModel | None = None
        if reference:
            self._reference = self._build(trained=False)
            load_weights(self._reference)

    @property
    def weight_version(self) -> int:
        """Number of optimisation steps behind the current weights; a skipped step does not count."""
        return self._optimizer.steps

    @property
    def loss_scale(self) -> float:
        """Current factor on the loss; 1 unless the model computes in fp16."""
        return self._optimizer.loss_scale

    def score(
        self, batch: TokenBatch, *, entropy: bool = False, extra: Sequence[Mapping[str, Any]] | None = None
    ) -> ScoredTokens:
        """Log-probs of every response token, inactive ones included, under the current weights.

        Args:
            batch: sequences, and the temperature of each.
            entropy: also give the full-vocabulary entropy.
            extra: per sequence, further model inputs.

        Returns:
            float32 log-probs (and entropy) in nats, in the order of the batch.

        Raises:
            InputError: a sequence the model cannot score, or longer than ``micro_batch_tokens``.

        Memory:
            Activations and model-precision logits of one micro-batch.
        """
        return self._score(self._model, batch, "", entropy, self.weight_version, extra)

    def score_reference(self, batch: TokenBatch) -> ScoredTokens:
        """Log-probs under the frozen reference policy, whose weight version is 0."""
        if self._reference is None:
            raise InputError("this actor keeps no reference policy: construct it with reference=True.")
        return self._score(self._reference, batch, "ref_", False, 0, None)

    def train_step(self, batch: TrainingBatch) -> Mapping[str, float]:
        """One optimisation step on the whole batch.

        Args:
            batch: sequences, advantages, and the log-probs that the objective reads.

        Returns:
            The objective's metrics, each a mean over its own denominator (left out where nothing was counted), and
            ``actor/loss``, ``actor/grad_norm`` (before clipping), ``actor/lr``, ``actor/skipped_steps`` (1 where the
            gradient was not finite and the weights were left alone), ``actor/loss_scale``.

        Raises:
            InputError: no objective, no active token, or a batch that `score` refuses.
        """
        if self._objective is None:
            raise InputError("this actor has no objective to train with: construct it with objective=....")
        check_batch(batch.tokens, self._family.folder)
        self._optimizer.zero_grad()
        reports = self._gradients(batch, self._objective)
        return self._finish(reports)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Current weights in the compute dtype under Hugging Face names, whole, on every rank.

        Yields:
            Name and tensor; all ranks must iterate to the end together. Experts come one by one, under the names of
            the files.
        """
        yield from each_weight(self._model)

    def save_checkpoint(self, folder: Path) -> None:
        """Write weights, optimizer, schedule, and generators into an existing, empty folder that all ranks see."""
        save_checkpoint(folder, self._model, self._optimizer)

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote, also under other parallel sizes.

        Args:
            folder: the checkpoint.

        Raises:
            ModelError: it cannot be read or belongs to another model.
        """
        load_checkpoint(folder, self._model, self._optimizer)

    def _build(self, *, trained: bool) -> MegatronModel:
        return build_model(
            self._family,
            self._groups,
            as_dtype(self._config.dtype),
            trained=trained,
            distributed_optimizer=self._config.distributed_optimizer and trained,
            recompute_layers=self._config.recompute_layers and trained,
            value_head=self.value_head,
            vocab_multiple=self._config.vocab_multiple,
        )

    def _micro_batches(
        self,
        batch: TokenBatch,
        wanted: Sequence[BoolArray] | None = None,
        extra: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[MicroBatch]:
        check_batch(batch, self._family.folder)
        return micro_batches(
            batch,
            self._config.micro_batch,
            self._groups,
            cpu.device(),
            wanted=wanted,
            packed=self._config.packed,
            extra=extra,
        )

    def _score(
        self,
        model: MegatronModel,
        batch: TokenBatch,
        prefix: str,
        entropy: bool,
        version: int,
        extra: Sequence[Mapping[str, Any]] | None,
    ) -> ScoredTokens:
        batches = self._micro_batches(batch, extra=extra)
        found = compute_log_prob(batches, prefix, model, entropy=entropy)
        return ScoredTokens(
            keys=batch.keys,
            log_probs=self._collect(found[f"{prefix}log_probs"], batches, batch),
            entropy=self._collect(found[f"{prefix}entropy"], batches, batch) if entropy else None,
            weight_version=version,
        )

    def _collect(self, values: list[Tensor], batches: list[MicroBatch], batch: TokenBatch) -> tuple[FloatArray, ...]:
        return collect_tokens(values, batches, batch.response_ids, self._groups)

    def _gradients(self, batch: TrainingBatch, objective: Objective, *, whole: bool = False) -> list[Report]:
        """Sum the step's gradients; ``whole`` leaves them unsharded under a distributed optimizer too."""
        if objective.temperature is not None:
            batch = TrainingBatch(
                batch.tokens.at_temperature(objective.temperature),
                batch.advantages,
                batch.old_log_probs,
                batch.ref_log_probs,
                batch.rollout_log_probs,
            )
        loss = PolicyLoss(
            objective,
            batch,
            step_denominators(batch, objective),
            self._model,
            recompute=self._config.recompute_loss,
        )
        return self._backward(loss, batch.tokens, fp32_output=loss.fp32_output, whole=whole)

    def _backward(
        self, loss: LossFunction[Report], tokens: TokenBatch, *, fp32_output: bool, whole: bool = False
    ) -> list[Report]:
        # A sequence without active tokens adds exactly nothing to any numerator; its forward is saved.
        batches = self._micro_batches(tokens, wanted=tokens.response_mask)
        return forward_backward(loss, self._model, batches, fp32_output=fp32_output, force_all_reduce=whole)

    def _finish(self, reports: list[Report]) -> Mapping[str, float]:
        result = self._optimizer.step()
        self._optimizer.zero_grad()
        loss, metrics = collect_metrics([r[0] for r in reports], [r[1] for r in reports], self._groups)
        return metrics | step_metrics(loss, result, self.loss_scale)


class MegatronCritic(MegatronActor):
    """The same with a value head in place of the LM head: gives and trains a value per response token.

    The head is read from ``score.weight`` where the folder has it and starts at zero where it has not. Its output is
    always float32.
    """

    value_head = True

    def values(self, batch: TokenBatch) -> tuple[FloatArray, ...]:
        """Value of every response token under the current weights.

        Args:
            batch: sequences; temperatures are not read.

        Returns:
            ``B`` float32 arrays ``[R_b]``.
        """
        batches = self._micro_batches(batch)
        return self._collect(compute_values(batches, self._model)["values"], batches, batch)

    def train_values(
        self, batch: TokenBatch, old_values: tuple[FloatArray, ...], returns: tuple[FloatArray, ...]
    ) -> Mapping[str, float]:
        """One optimisation step of the value objective.

        Args:
            batch: sequences; masked tokens do not count.
            old_values: ``B`` arrays ``[R_b]``, before the update.
            returns: ``B`` arrays ``[R_b]``, what the values should have been.

        Returns:
            Metrics as of `MegatronActor.train_step`.

        Raises:
            InputError: no objective or no active token.
        """
        if self._objective is None or batch.active_tokens == 0:
            raise InputError("value step: expected an objective and at least one active token.")
        objective: ValueObjective = self._objective
        counts = Denominators(batch.active_tokens, sum(bool(mask.any()) for mask in batch.response_mask))
        loss = ValueLoss(objective, old_values, returns, counts, self._model)
        self._optimizer.zero_grad()
        return self._finish(self._backward(loss, batch, fp32_output=loss.fp32_output))


__all__ = ["MegatronActor", "MegatronCritic"]
