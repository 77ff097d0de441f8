"""Critic on Megatron-Core: the actor's model with a value head, whose float32 output is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from logparity.actors.megatron.config import MegatronConfig
from logparity.actors.megatron.engine import MegatronEngine
from logparity.actors.megatron.groups import ParallelGroups
from logparity.actors.megatron.scoring import compute_values
from logparity.actors.megatron.training import ValueLoss
from logparity.actors.optimizer import OptimizerConfig
from logparity.errors import InputError
from logparity.losses.base import Denominators
from logparity.losses.value import ValueObjective
from logparity.records import FloatArray, TokenBatch, ValueBatch


class MegatronCritic:
    """Predicts and learns the return of every response token; collective as `MegatronActor` is.

    The head is read from ``score.weight`` and ``score.bias`` where the folder has them and starts at zero where it has
    not.

    Args:
        model_folder: a local Hugging Face folder that every rank sees; its body is where the critic starts.
        groups: this rank's process groups.
        objective: the value loss.
        optimizer: how weights are updated.
        config: everything else.

    Raises:
        ModelError: the folder is incomplete, or its model is not supported.
        InputError: the model does not divide into the parallel sizes.
    """

    def __init__(
        self,
        model_folder: str | Path,
        groups: ParallelGroups,
        objective: ValueObjective,
        optimizer: OptimizerConfig | None = None,
        *,
        config: MegatronConfig | None = None,
    ) -> None:
        self._engine = MegatronEngine(model_folder, groups, optimizer, config, value_head=True)
        self._objective = objective

    def values(self, batch: TokenBatch) -> tuple[FloatArray, ...]:
        """Predicted return before each response token, inactive ones included.

        Args:
            batch: the sequences.

        Returns:
            ``B`` float32 arrays ``[R_b]``, in the order of the batch.
        """
        batches = self._engine.micro_batches(batch)
        return self._engine.collect(compute_values(batches, self._engine.model)["values"], batches, batch)

    def train_step(self, batch: ValueBatch) -> Mapping[str, float]:
        """One optimisation step on the whole batch.

        Args:
            batch: sequences, values before the update, and returns.

        Returns:
            The loss's metrics, and ``critic/loss``, ``critic/grad_norm``, ``critic/lr``, ``critic/skipped_steps``.

        Raises:
            InputError: no active token, or a batch that `values` refuses.
        """
        masks = batch.tokens.response_mask
        if not batch.tokens.active_tokens:
            raise InputError(f"batch of {len(masks)} sequences: expected at least one active token, got none.")
        counts = Denominators(batch.tokens.active_tokens, sum(bool(mask.any()) for mask in masks))
        loss = ValueLoss(self._objective, batch, counts, self._engine.model)
        reports = self._engine.backward(loss, batch.tokens, fp32_output=loss.fp32_output)
        return self._engine.step("critic", reports)

    def save_checkpoint(self, folder: Path) -> None:
        """Write weights, optimizer, schedule, and generators into an existing, empty folder that all ranks see."""
        self._engine.save_checkpoint(folder)

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote, also under other parallel sizes."""
        self._engine.load_checkpoint(folder)


__all__ = ["MegatronCritic"]
