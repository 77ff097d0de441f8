"""Value model on Transformers, one process: PPO's critic, with float32 values and float32 masters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from logparity.actors.checkpoint import read_checkpoint, write_checkpoint
from logparity.actors.masters import MasterWeights
from logparity.actors.microbatch import micro_batches
from logparity.actors.optimizer import MasterOptimizer, OptimizerConfig
from logparity.actors.step_metrics import plain_metrics, step_metrics
from logparity.actors.tensors import check_batch
from logparity.errors import InputError
from logparity.layout.padded import pad_sequences, split_by_response
from logparity.losses.base import Denominators, Metrics, ValueTensors, merge_metrics
from logparity.losses.value import ValueObjective
from logparity.models.folder import check_model_folder
from logparity.models.loading import as_device, as_dtype, load_causal_lm, recompute_layers
from logparity.records import FloatArray, TokenBatch, ValueBatch


class ValueModel(nn.Module):
    """A language model's body with one float32 number per position.

    Args:
        folder: model folder whose body is taken.
        dtype: compute dtype of the body; the value head is float32 always.
        device: where everything goes.
    """

    def __init__(self, folder: str | Path, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        language_model = load_causal_lm(folder, dtype=dtype, device=device)
        self.body: nn.Module = language_model.base_model
        self.value_head = nn.Linear(language_model.config.get_text_config().hidden_size, 1, device=device)
        # Values start at 0 everywhere: no random state, and no advantage is invented before anything was learned.
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, input_ids: Tensor, rows: Tensor) -> Tensor:
        """Values float32 ``[N]`` at flat rows ``[N]`` of ``input_ids`` ``[B, L]``."""
        hidden = self.body(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)[rows]
        values: Tensor = self.value_head(hidden.float()).squeeze(-1)
        return values


class HFCritic:
    """Predicts and learns the return of every response token.

    The value of response token ``j`` is read where its logits are: at the position before it, which has not seen it.

    Args:
        model_folder: a local Hugging Face folder; its body is where the critic starts.
        objective: the value loss.
        optimizer: how weights are updated.
        dtype: compute dtype of the body, ``"bfloat16"`` or ``"float32"``; masters and values are float32.
        device: where to run; None picks CUDA where there is one.
        micro_batch_tokens: padded tokens computed together, never exceeded.
        gradient_checkpointing: recompute each layer in the backward instead of keeping its activations.

    Raises:
        ModelError: the folder is incomplete or cannot be loaded.
    """

    def __init__(
        self,
        model_folder: str | Path,
        objective: ValueObjective,
        optimizer: OptimizerConfig | None = None,
        *,
        dtype: str = "bfloat16",
        device: str | torch.device | None = None,
        micro_batch_tokens: int = 1024,
        gradient_checkpointing: bool = False,
    ) -> None:
        self._folder = check_model_folder(model_folder)
        self._device = as_device(device)
        self._objective = objective
        self._budget = micro_batch_tokens
        self._weights = MasterWeights(lambda d: ValueModel(model_folder, d, self._device), as_dtype(dtype))
        self._model = self._weights.model
        self._optimizer = MasterOptimizer(self._weights.masters, optimizer or OptimizerConfig())
        if gradient_checkpointing:
            recompute_layers(self._model.body)

    @torch.no_grad()
    def values(self, batch: TokenBatch) -> tuple[FloatArray, ...]:
        """Predicted returns of every response token, inactive ones included.

        Args:
            batch: the sequences.

        Returns:
            ``B`` float32 arrays ``[R_b]``, in the order of the batch.

        Raises:
            InputError: an empty prompt, an id outside the vocabulary, or a sequence longer than the context.
        """
        check_batch(batch, self._folder)
        values: dict[int, FloatArray] = {}
        for chosen in micro_batches(batch, self._budget):
            part = batch.select(chosen)
            padded = pad_sequences(part.prompt_ids, part.response_ids, device=self._device)
            predicted = self._model(padded.input_ids, padded.rows)
            values.update(zip(chosen, split_by_response(predicted, part.response_ids), strict=True))
        return tuple(values[b] for b in range(len(batch)))

    def train_step(self, batch: ValueBatch) -> Mapping[str, float]:
        """One optimisation step on the whole batch; gradients add up over micro-batches.

        Args:
            batch: sequences, values before the update, and returns.

        Returns:
            The loss's metrics, and ``critic/loss``, ``critic/grad_norm``, ``critic/lr``, ``critic/skipped_steps``.

        Raises:
            InputError: no active token, or a batch that `values` refuses.
        """
        check_batch(batch.tokens, self._folder)
        masks = batch.tokens.response_mask
        trained = batch.select([b for b, mask in enumerate(masks) if mask.any()])
        if not len(trained.tokens):
            raise InputError(f"batch of {len(masks)} sequences: expected at least one active token, got none.")
        denominators = Denominators(batch.tokens.active_tokens, len(trained.tokens))
        self._weights.zero_grad()
        loss, parts = 0.0, []
        for chosen in micro_batches(trained.tokens, self._budget):
            part, metrics = self._backward(trained.select(chosen), denominators)
            loss += part
            parts.append(metrics)
        step = self._optimizer.step()
        self._weights.zero_grad()
        self._weights.publish()
        return plain_metrics(merge_metrics(parts)) | step_metrics("critic", loss, step)

    def save_checkpoint(self, folder: Path) -> None:
        """Write float32 masters, optimizer moments, and counters into an existing, empty folder."""
        write_checkpoint(folder, self._weights.masters, self._optimizer)

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote; training then continues with the same bits."""
        read_checkpoint(folder, self._weights.masters, self._optimizer)
        self._weights.publish()

    def _backward(self, batch: ValueBatch, denominators: Denominators) -> tuple[float, Metrics]:
        tokens = batch.tokens
        padded = pad_sequences(tokens.prompt_ids, tokens.response_ids, wanted=tokens.response_mask, device=self._device)

        def flat(arrays: tuple[FloatArray, ...]) -> Tensor:
            chosen = [values[mask] for values, mask in zip(arrays, tokens.response_mask, strict=True)]
            return torch.from_numpy(np.concatenate(chosen)).to(self._device)

        values = self._model(padded.input_ids, padded.rows)
        loss, metrics = self._objective(
            ValueTensors(
                values=values,
                mask=torch.ones_like(values, dtype=torch.bool),
                sequence_ids=padded.sequence_ids,
                num_sequences=len(tokens),
                old_values=flat(batch.old_values),
                returns=flat(batch.returns),
                keys=tokens.keys,
                positions=padded.positions,
            ),
            denominators,
        )
        torch.autograd.backward(loss)
        return float(loss.detach()), metrics


__all__ = ["HFCritic", "ValueModel"]
