"""Actor on Transformers under FSDP2: one object per rank, every rank told everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh

from logparity.actors.denominators import step_denominators
from logparity.actors.fsdp.checkpoint import load_checkpoint, save_checkpoint
from logparity.actors.fsdp.collect import collect_metrics, collect_tokens, raise_together
from logparity.actors.fsdp.mesh import DATA, TENSOR, mesh_device, open_mesh
from logparity.actors.fsdp.model import ShardedModel
from logparity.actors.fsdp.optimizer import ShardedOptimizer
from logparity.actors.fsdp.weights import ShardedWeights
from logparity.actors.optimizer import OptimizerConfig
from logparity.actors.sharing import MicroBatchSize, plan_micro_batches
from logparity.actors.step_metrics import plain_metrics, step_metrics
from logparity.actors.tensors import check_batch, per_token, token_tensors
from logparity.errors import InputError
from logparity.layout.padded import pad_sequences, split_by_response
from logparity.losses.base import Denominators, EntropyMode, Metrics, Objective
from logparity.models.folder import check_model_folder
from logparity.models.loading import as_dtype
from logparity.records import FloatArray, ScoredTokens, TokenBatch, TrainingBatch

if TYPE_CHECKING:
    from torch import Tensor

_NOTHING = TokenBatch(
    keys=("",),
    prompt_ids=(np.zeros(1, dtype=np.int64),),
    response_ids=(np.zeros(0, dtype=np.int64),),
    response_mask=(np.zeros(0, dtype=np.bool_),),
    temperature=np.ones(1, dtype=np.float32),
)
"""What a rank computes that has fewer micro-batches than others: it must take part in gathering their weights."""


class FSDPActor:
    """Scores and trains a Transformers causal language model whose weights are spread over ranks.

    Every method is collective: all ranks call it with the same arguments and get the same results. Sequences are shared
    out over ranks by tokens. Weights, gradients, and optimizer state are float32 shards; a layer's weights are gathered
    in ``dtype`` while it computes. Nothing here draws random numbers.

    Args:
        model_folder: a local Hugging Face folder that every rank sees.
        objective: the loss that `train_step` minimises; None makes an actor that only scores.
        optimizer: how weights are updated.
        mesh: ranks and device, as of `open_mesh`; None spreads over all ranks of the default process group.
        dtype: compute dtype, ``"bfloat16"`` or ``"float32"``.
        micro_batch_tokens: padded tokens that a rank computes together, never exceeded.
        reference: keep a frozen, sharded copy of the folder's weights in ``dtype`` for `score_reference`.
        gradient_checkpointing: recompute each layer in the backward instead of keeping its activations.
        recompute_loss: recompute the logits in the backward, 1,024 rows at a time, instead of keeping those of a whole
            micro-batch.

    Raises:
        ModelError: the folder is incomplete or cannot be loaded.
        InputError: a dtype that cannot be trained, a token budget below 1, or no process group.
    """

    def __init__(
        self,
        model_folder: str | Path,
        objective: Objective | None = None,
        optimizer: OptimizerConfig | None = None,
        *,
        mesh: DeviceMesh | None = None,
        dtype: str = "bfloat16",
        micro_batch_tokens: int = 1024,
        reference: bool = False,
        gradient_checkpointing: bool = False,
        recompute_loss: bool = False,
    ) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise InputError(f"dtype: expected 'bfloat16' or 'float32' (float16 needs loss scaling), got {dtype!r}.")
        self._size = MicroBatchSize(tokens=micro_batch_tokens)
        self._folder = check_model_folder(model_folder)
        self._objective = objective
        self._recompute_loss = recompute_loss
        self._dtype = as_dtype(dtype)
        mesh = open_mesh() if mesh is None else mesh
        self._device, self._group = mesh_device(mesh), mesh[DATA].get_group()
        self._model = ShardedModel(model_folder, mesh, self._dtype, trained=True, recompute=gradient_checkpointing)
        self._reference = ShardedModel(model_folder, mesh, self._dtype, trained=False) if reference else None
        self._weights = ShardedWeights(self._model.model, mesh[TENSOR], self._model.summed)
        self._optimizer = ShardedOptimizer(
            self._weights.parts,
            optimizer or OptimizerConfig(),
            [mesh[DATA].get_group(), mesh[TENSOR].get_group()],
            self._device,
            self._weights.counted(),
        )

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
            InputError: a sequence the model cannot score, or longer than a micro-batch may be.

        Memory:
            Activations and model-precision logits of one micro-batch, the weights of one layer, embedding and LM head.
        """
        return self._score(self._model, batch, EntropyMode.VALUE if entropy else EntropyMode.NONE, self.weight_version)

    def score_reference(self, batch: TokenBatch) -> ScoredTokens:
        """Log-probs under the frozen reference policy, whose weight version is 0."""
        if self._reference is None:
            raise InputError("this actor keeps no reference policy: construct it with reference=True.")
        return self._score(self._reference, batch, EntropyMode.NONE, 0)

    def train_step(self, batch: TrainingBatch) -> Mapping[str, float]:
        """One optimisation step on the whole batch; gradients add up over micro-batches and ranks.

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
        for chosen in self._share(trained.tokens):
            part, metrics = self._backward(self._objective, trained.select(chosen) if chosen else None, denominators)
            loss += part
            parts.append(metrics)
        self._weights.take_gradients()
        step = self._optimizer.step()
        self._weights.zero_grad()
        loss, merged = collect_metrics(loss, parts, self._group)
        return plain_metrics(merged) | step_metrics("actor", loss, step)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Current weights in the compute dtype under Hugging Face names, whole, on every rank.

        Yields:
            Name and tensor; all ranks must iterate to the end together.

        Memory:
            One weight at a time, as long as the caller keeps it.
        """
        yield from self._weights.gathered(self._dtype)

    def save_checkpoint(self, folder: Path) -> None:
        """Write float32 masters, optimizer moments, and counters into an existing, empty folder that all ranks see."""
        save_checkpoint(folder, self._weights, self._optimizer)

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote: over as many ranks bit by bit, over others the same weights.

        The reference policy is not part of it: it is always the model folder's weights.

        Args:
            folder: the checkpoint.

        Raises:
            ModelError: the checkpoint cannot be read or belongs to another model.
        """
        load_checkpoint(folder, self._weights, self._optimizer)

    def _share(self, batch: TokenBatch) -> list[list[int]]:
        """This rank's micro-batches, as many as on every rank; some may be empty."""
        lengths = [len(p) + len(r) for p, r in zip(batch.prompt_ids, batch.response_ids, strict=True)]
        plan = plan_micro_batches(lengths, batch.keys, self._size, ranks=self._group.size(), packed=False)
        return plan[self._group.rank()]

    @torch.no_grad()
    def _score(self, model: ShardedModel, batch: TokenBatch, mode: EntropyMode, version: int) -> ScoredTokens:
        check_batch(batch, self._folder)
        log_probs: dict[int, FloatArray] = {}
        entropies: dict[int, FloatArray] = {}
        for chosen in self._share(batch):
            part = batch.select(chosen) if chosen else _NOTHING
            padded = pad_sequences(part.prompt_ids, part.response_ids, device=self._device)
            scored, entropy = model.log_probs(padded, per_token(part, padded), mode)
            if not chosen:
                continue
            log_probs.update(zip(chosen, split_by_response(scored, part.response_ids), strict=True))
            if entropy is not None:
                entropies.update(zip(chosen, split_by_response(entropy, part.response_ids), strict=True))
        model.free()

        def whole(own: dict[int, FloatArray]) -> tuple[FloatArray, ...]:
            return collect_tokens(own, batch.response_ids, self._group, self._device)

        return ScoredTokens(
            keys=batch.keys,
            log_probs=whole(log_probs),
            entropy=whole(entropies) if mode is not EntropyMode.NONE else None,
            weight_version=version,
        )

    def _backward(
        self, objective: Objective, batch: TrainingBatch | None, denominators: Denominators
    ) -> tuple[float, Metrics]:
        """Add one micro-batch's gradient, summed over ranks, to the shards'."""
        tokens = _NOTHING if batch is None else batch.tokens
        if objective.temperature is not None:
            tokens = tokens.at_temperature(objective.temperature)
        padded = pad_sequences(tokens.prompt_ids, tokens.response_ids, wanted=tokens.response_mask, device=self._device)
        log_probs, entropy = self._model.log_probs(
            padded, per_token(tokens, padded), objective.entropy, objective.precision, self._recompute_loss
        )
        loss = log_probs.sum()  # of no tokens: 0, and a gradient of 0 for every weight
        metrics: Metrics = {}
        failure: Exception | None = None
        if batch is not None:
            try:
                loss, metrics = objective(token_tensors(batch, padded, log_probs, entropy), denominators)
            except Exception as error:  # raised below, on every rank
                failure = error
        try:
            raise_together(failure, self._group, self._device)
        except Exception:
            self._model.abandon()
            raise
        torch.autograd.backward(loss)
        return float(loss.detach()), metrics


__all__ = ["FSDPActor"]
