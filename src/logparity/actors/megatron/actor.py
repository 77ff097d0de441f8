"""Actor on Megatron-Core: one object per rank, every rank called with the same batch, every rank told everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from logparity.actors.denominators import step_denominators
from logparity.actors.megatron.build import MegatronModel
from logparity.actors.megatron.config import MegatronConfig
from logparity.actors.megatron.engine import MegatronEngine
from logparity.actors.megatron.groups import ParallelGroups
from logparity.actors.megatron.scoring import compute_log_prob
from logparity.actors.megatron.training import PolicyLoss, Report
from logparity.actors.megatron.weights import each_weight, load_weights
from logparity.actors.optimizer import OptimizerConfig
from logparity.errors import InputError
from logparity.losses.base import Objective
from logparity.records import ScoredTokens, TokenBatch, TrainingBatch


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

    def __init__(
        self,
        model_folder: str | Path,
        groups: ParallelGroups,
        objective: Objective | None = None,
        optimizer: OptimizerConfig | None = None,
        *,
        config: MegatronConfig | None = None,
        reference: bool = False,
    ) -> None:
        self._engine = MegatronEngine(model_folder, groups, optimizer, config)
        self._objective = objective
        self._reference: MegatronModel | None = None
        if reference:
            self._reference = self._engine.build(trained=False)
            load_weights(self._reference)

    @property
    def weight_version(self) -> int:
        """Number of optimisation steps behind the current weights; a skipped step does not count."""
        return self._engine.optimizer.steps

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
            InputError: a sequence the model cannot score, or longer than a micro-batch may be.

        Memory:
            Activations and model-precision logits of one micro-batch.
        """
        return self._score(self._engine.model, batch, "", entropy, self.weight_version, extra)

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
            gradient was not finite and the weights were left alone), and in fp16 ``actor/loss_scale``.

        Raises:
            InputError: no objective, no active token, or a batch that `score` refuses.
        """
        if self._objective is None:
            raise InputError("this actor has no objective to train with: construct it with objective=....")
        return self._engine.step("actor", self.gradients(batch, self._objective))

    def gradients(self, batch: TrainingBatch, objective: Objective, *, whole: bool = False) -> list[Report]:
        """Sum a step's gradients without stepping.

        Args:
            batch: as of `train_step`.
            objective: the loss.
            whole: leave unsharded gradients on every rank, also under a distributed optimizer.

        Returns:
            Loss and metrics per micro-batch on the last stage.
        """
        if objective.temperature is not None:
            batch = replace(batch, tokens=batch.tokens.at_temperature(objective.temperature))
        loss = PolicyLoss(
            objective,
            batch,
            step_denominators(batch, objective),
            self._engine.model,
            recompute=self._engine.config.recompute_loss,
        )
        return self._engine.backward(loss, batch.tokens, fp32_output=loss.fp32_output, whole=whole)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Current weights in the compute dtype under Hugging Face names, whole, on every rank.

        Yields:
            Name and tensor; all ranks must iterate to the end together. Experts come one by one, under the names of
            the files. The tensors may be the actor's own: copy what is kept.
        """
        yield from each_weight(self._engine.model)

    def save_checkpoint(self, folder: Path) -> None:
        """Write weights, optimizer, schedule, and generators into an existing, empty folder that all ranks see."""
        self._engine.save_checkpoint(folder)

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote, also under other parallel sizes; the reference is not part of it."""
        self._engine.load_checkpoint(folder)

    def _score(
        self,
        model: MegatronModel,
        batch: TokenBatch,
        prefix: str,
        entropy: bool,
        version: int,
        extra: Sequence[Mapping[str, Any]] | None,
    ) -> ScoredTokens:
        batches = self._engine.micro_batches(batch, extra=extra)
        found = compute_log_prob(batches, prefix, model, entropy=entropy)
        return ScoredTokens(
            keys=batch.keys,
            log_probs=self._engine.collect(found[f"{prefix}log_probs"], batches, batch),
            entropy=self._engine.collect(found[f"{prefix}entropy"], batches, batch) if entropy else None,
            weight_version=version,
        )


__all__ = ["MegatronActor"]
