"""Actor on Transformers, one process: logits in model precision, float32 masters, one optimisation step a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from logparity.actors.checkpoint import read_checkpoint, write_checkpoint
from logparity.actors.denominators import step_denominators
from logparity.actors.forward import response_log_probs
from logparity.actors.masters import MasterWeights
from logparity.actors.microbatch import micro_batches
from logparity.actors.optimizer import MasterOptimizer, OptimizerConfig
from logparity.actors.step_metrics import plain_metrics, step_metrics
from logparity.actors.tensors import check_batch, per_token, token_tensors
from logparity.errors import InputError
from logparity.layout.padded import pad_sequences, split_by_response
from logparity.losses.base import Denominators, EntropyMode, Metrics, Objective, merge_metrics
from logparity.models.folder import check_model_folder
from logparity.models.loading import as_device, as_dtype, head_options, load_causal_lm, recompute_layers
from logparity.models.weights import named_weights
from logparity.records import FloatArray, ScoredTokens, TokenBatch, TrainingBatch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class HFActor:
    """Scores and trains a Transformers causal language model in this process.

    Weights and optimizer state are float32; the model computes in ``dtype`` with their cast. Logits are never copied
    to float32 as a whole. Nothing here draws random numbers: the same inputs give the same numbers.

    Args:
        model_folder: a local Hugging Face folder.
        objective: the loss that `train_step` minimises; None makes an actor that only scores.
        optimizer: how weights are updated.
        dtype: compute dtype, ``"bfloat16"`` or ``"float32"`` (then the masters are the weights themselves).
        device: where to run; None picks CUDA where there is one.
        micro_batch_tokens: padded tokens computed together, never exceeded; bounds activation memory.
        reference: keep a frozen copy of the folder's weights in ``dtype`` for `score_reference`.
        gradient_checkpointing: recompute each layer in the backward instead of keeping its activations.
        recompute_loss: recompute the logits in the backward, 1,024 rows at a time, instead of keeping those of a whole
            micro-batch.

    Raises:
        ModelError: the folder is incomplete or cannot be loaded.
        InputError: a dtype that cannot be trained, or a token budget below 1.
    """

    def __init__(
        self,
        model_folder: str | Path,
        objective: Objective | None = None,
        optimizer: OptimizerConfig | None = None,
        *,
        dtype: str = "bfloat16",
        device: str | torch.device | None = None,
        micro_batch_tokens: int = 1024,
        reference: bool = False,
        gradient_checkpointing: bool = False,
        recompute_loss: bool = False,
    ) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise InputError(f"dtype: expected 'bfloat16' or 'float32' (float16 needs loss scaling), got {dtype!r}.")
        if micro_batch_tokens < 1:
            raise InputError(f"micro_batch_tokens: expected >= 1, got {micro_batch_tokens}.")
        self._folder = check_model_folder(model_folder)
        self._device = as_device(device)
        self._objective = objective
        self._budget = micro_batch_tokens
        self._recompute_loss = recompute_loss
        self._weights = MasterWeights(
            lambda d: load_causal_lm(model_folder, dtype=d, device=self._device), as_dtype(dtype)
        )
        self._model = self._weights.model
        self._head_options = head_options(self._model.config)
        self._optimizer = MasterOptimizer(self._weights.masters, optimizer or OptimizerConfig())
        self._reference: PreTrainedModel | None = None
        if reference:
            self._reference = load_causal_lm(model_folder, dtype=as_dtype(dtype), device=self._device)
        if gradient_checkpointing:
            recompute_layers(self._model)

    @property
    def weight_version(self) -> int:
        """Number of optimisation steps behind the current weights; a skipped step does not count."""
        return self._optimizer.steps

    def score(self, batch: TokenBatch, *, entropy: bool = False) -> ScoredTokens:
        """Log-probs of every response token, inactive ones included, under the current weights.

        Args:
            batch: sequences, and the temperature of each.
            entropy: also give the full-vocabulary entropy.

        Returns:
            float32 log-probs (and entropy) in nats, in the order of the batch.

        Raises:
            InputError: an empty prompt, an id outside the vocabulary, or a sequence longer than the context.

        Memory:
            Activations and model-precision logits of one micro-batch.
        """
        return self._score(self._model, batch, EntropyMode.VALUE if entropy else EntropyMode.NONE, self.weight_version)

    def score_reference(self, batch: TokenBatch) -> ScoredTokens:
        """Log-probs under the frozen reference policy, whose weight version is 0."""
        if self._reference is None:
            raise InputError("this actor keeps no reference policy: construct it with reference=True.")
        return self._score(self._reference, batch, EntropyMode.NONE, 0)

    def train_step(self, batch: TrainingBatch) -> Mapping[str, float]:
        """One optimisation step on the whole batch; gradients add up over micro-batches.

        Args:
            batch: sequences, advantages, and the log-probs that the objective reads.

        Returns:
            The objective's metrics, each a mean over its own denominator (left out where nothing was counted), and
            ``actor/loss``, ``actor/grad_norm`` (before clipping), ``actor/lr``, ``actor/skipped_steps`` (1 where the
            gradient was not finite and the weights were left alone).

        Raises:
            InputError: no objective, no active token, or a batch that `score` refuses.
        """
        if self._objective is None:
            raise InputError("this actor has no objective to train with: construct it with objective=....")
        check_batch(batch.tokens, self._folder)
        denominators = step_denominators(batch, self._objective)
        # A sequence without active tokens adds exactly nothing to any numerator; its forward is saved.
        trained = batch.select([b for b, mask in enumerate(batch.tokens.response_mask) if mask.any()])
        self._weights.zero_grad()
        loss, parts = 0.0, []
        for chosen in micro_batches(trained.tokens, self._budget):
            part, metrics = self._backward(self._objective, trained.select(chosen), denominators)
            loss += part
            parts.append(metrics)
        step = self._optimizer.step()
        self._weights.zero_grad()
        self._weights.publish()
        return plain_metrics(merge_metrics(parts)) | step_metrics("actor", loss, step)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Current weights in the compute dtype under Hugging Face names.

        Yields:
            Name and tensor; the tensors are the actor's own and change with its next step: copy what is kept.
        """
        for name, tensor in named_weights(self._model):
            yield name, tensor.detach()

    def save_checkpoint(self, folder: Path) -> None:
        """Write float32 masters, optimizer moments, and counters into an existing, empty folder."""
        write_checkpoint(folder, self._weights.masters, self._optimizer)

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote; training then continues with the same bits.

        The reference policy is not part of it: it is always the model folder's weights.

        Args:
            folder: the checkpoint.

        Raises:
            ModelError: the checkpoint cannot be read or belongs to another model.
        """
        read_checkpoint(folder, self._weights.masters, self._optimizer)
        self._weights.publish()

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, batch: TokenBatch, mode: EntropyMode, version: int) -> ScoredTokens:
        check_batch(batch, self._folder)
        log_probs: dict[int, FloatArray] = {}
        entropies: dict[int, FloatArray] = {}
        for chosen in micro_batches(batch, self._budget):
            part = batch.select(chosen)
            padded = pad_sequences(part.prompt_ids, part.response_ids, device=self._device)
            scored, entropy = response_log_probs(
                model, padded, per_token(part, padded), entropy=mode, head_options=self._head_options
            )
            log_probs.update(zip(chosen, split_by_response(scored, part.response_ids), strict=True))
            if entropy is not None:
                entropies.update(zip(chosen, split_by_response(entropy, part.response_ids), strict=True))
        order = range(len(batch))
        return ScoredTokens(
            keys=batch.keys,
            log_probs=tuple(log_probs[b] for b in order),
            entropy=tuple(entropies[b] for b in order) if mode is not EntropyMode.NONE else None,
            weight_version=version,
        )

    def _backward(
        self, objective: Objective, batch: TrainingBatch, denominators: Denominators
    ) -> tuple[float, Metrics]:
        """Add one micro-batch's gradient to the masters'."""
        tokens = batch.tokens
        if objective.temperature is not None:
            tokens = tokens.at_temperature(objective.temperature)
        padded = pad_sequences(tokens.prompt_ids, tokens.response_ids, wanted=tokens.response_mask, device=self._device)
        log_probs, entropy = response_log_probs(
            self._model,
            padded,
            per_token(tokens, padded),
            entropy=objective.entropy,
            precision=objective.precision,
            head_options=self._head_options,
            recompute=self._recompute_loss,
        )
        loss, metrics = objective(token_tensors(batch, padded, log_probs, entropy), denominators)
        torch.autograd.backward(loss)
        return float(loss.detach()), metrics


__all__ = ["HFActor"]
