"""Rollout engine in this process: Transformers forward, own sampling loop, log-probs in a declared mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import transformers

from logparity.errors import InputError
from logparity.models.folder import check_model_folder
from logparity.models.loading import as_device, as_dtype, load_causal_lm, load_tokenizer
from logparity.models.weights import copy_weights
from logparity.records import EngineInfo, FinishReason, LogProbMode, Rollout, SamplingSettings
from logparity.rollout.base import Progress, Request
from logparity.rollout.decode import Response, decode_batch

if TYPE_CHECKING:
    from torch import Tensor


class HFRolloutEngine:
    """Samples responses with a Transformers model in this process.

    A response depends on its prompt, its seed, and the weights; the other requests of a batch change it only through
    rounding of the model's own arithmetic. Equal prompts of a batch are read once.

    Args:
        model_folder: a local Hugging Face folder.
        dtype: compute dtype, ``"bfloat16"``, ``"float16"``, or ``"float32"``.
        device: where to run; None picks CUDA where there is one.
        log_prob_mode: which distribution the reported log-probs belong to.
        batch_size: responses decoded together.

    Raises:
        ModelError: the folder is incomplete or cannot be loaded.
        InputError: an unknown dtype, or a batch size below 1.
    """

    def __init__(
        self,
        model_folder: str | Path,
        *,
        dtype: str = "bfloat16",
        device: str | torch.device | None = None,
        log_prob_mode: LogProbMode = LogProbMode.PROCESSED,
        batch_size: int = 64,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size: expected >= 1, got {batch_size}.")
        self._folder = check_model_folder(model_folder)
        self._model = load_causal_lm(model_folder, dtype=as_dtype(dtype), device=as_device(device))
        self._tokenizer = load_tokenizer(model_folder)
        self._batch_size = batch_size
        self._version = 0
        self._info = EngineInfo("transformers", transformers.__version__, dtype, LogProbMode(log_prob_mode))

    @property
    def info(self) -> EngineInfo:
        """Name, version, dtype, and log-prob mode."""
        return self._info

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next `generate` samples from."""
        return self._version

    def generate(
        self, requests: Sequence[Request], sampling: SamplingSettings, progress: Progress | None = None
    ) -> list[Rollout]:
        """Sample one response per request.

        Args:
            requests: what to sample; an empty list gives an empty list.
            sampling: how tokens are drawn; its stop ids are the only ones that end a response.
            progress: called with (finished, asked for) after every finished response.

        Returns:
            One rollout per request, in the order of the requests; a stop token is part of its response.

        Raises:
            InputError: a prompt is empty, holds an id outside the vocabulary, or leaves no room in the context.
            NonFiniteError: the model gave NaN or infinite logits.
        """
        for request in requests:
            self._check(request, sampling)
        done = 0

        def on_finished() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, len(requests))

        # Prompts of similar length, and equal ones, share a batch: less padding, fewer prefills.
        order = sorted(
            range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].prompt_ids.tobytes())
        )
        rollouts: dict[int, Rollout] = {}
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            batch = [requests[i] for i in chosen]
            responses = decode_batch(self._model, batch, sampling, self._info.log_prob_mode, on_finished)
            for i, response in zip(chosen, responses, strict=True):
                rollouts[i] = self._rollout(requests[i], response, sampling)
        return [rollouts[i] for i in range(len(requests))]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over new weights under a version number.

        Args:
            weights: every weight of the model under its Hugging Face name; tied ones may appear once or twice.
            version: number that the next rollouts carry.

        Raises:
            InputError: a name is unknown, missing, or has another shape; the engine then keeps its old weights.
        """
        copy_weights(self._model, weights)
        self._version = version

    def _check(self, request: Request, sampling: SamplingSettings) -> None:
        ids, vocab, context = request.prompt_ids, self._folder.vocab_size, self._folder.context_length
        if len(ids) == 0:
            raise InputError(f"prompt of {request.key!r}: expected at least one id, got none.")
        if int(ids.min()) < 0 or int(ids.max()) >= vocab:
            worst = int(ids.max()) if int(ids.max()) >= vocab else int(ids.min())
            raise InputError(f"prompt of {request.key!r}: expected ids in [0, {vocab}), got {worst}.")
        if context is not None and len(ids) + sampling.max_new_tokens > context:
            raise InputError(
                f"prompt of {request.key!r}: {len(ids)} prompt tokens + {sampling.max_new_tokens} new tokens = "
                f"{len(ids) + sampling.max_new_tokens}, but the model's context is {context}. "
                "Shorten the prompt or lower max_new_tokens."
            )

    def _rollout(self, request: Request, response: Response, sampling: SamplingSettings) -> Rollout:
        ids = np.asarray(response.ids, dtype=np.int64)
        return Rollout(
            key=request.key,
            group=request.group,
            prompt_ids=request.prompt_ids,
            response_ids=ids,
            rollout_log_probs=np.asarray(response.log_probs, dtype=np.float32),
            response_mask=np.ones(len(ids), dtype=np.bool_),
            weight_version=self._version,
            sampling=sampling,
            engine=self._info,
            finish_reason=response.finish_reason or FinishReason.LENGTH,
            text=self._tokenizer.decode(response.ids, skip_special_tokens=True),
        )


__all__ = ["HFRolloutEngine"]
