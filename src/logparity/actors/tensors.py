"""Between records (numpy, ragged) and the flat tensors that losses read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from logparity.errors import InputError
from logparity.layout.padded import PaddedBatch
from logparity.losses.base import TokenTensors
from logparity.models.folder import ModelFolder
from logparity.records import FloatArray, TokenBatch, TrainingBatch

if TYPE_CHECKING:
    from torch import Tensor


def check_batch(batch: TokenBatch, model: ModelFolder) -> None:
    """Refuse sequences that the model cannot score.

    Args:
        batch: the sequences.
        model: whose vocabulary and context they must fit.

    Raises:
        InputError: an empty prompt, an id outside the vocabulary, or a sequence longer than the context.
    """
    for key, prompt, response in zip(batch.keys, batch.prompt_ids, batch.response_ids, strict=True):
        if len(prompt) == 0:
            raise InputError(f"prompt of {key!r}: expected at least one id, got none: nothing predicts a first token.")
        length = len(prompt) + len(response)
        if model.context_length is not None and length > model.context_length:
            raise InputError(
                f"sequence {key!r}: {len(prompt)} prompt + {len(response)} response tokens = {length}, but the "
                f"model's context is {model.context_length}. Shorten the prompt or the response."
            )
        for ids, name in ((prompt, "prompt"), (response, "response")):
            outside = np.flatnonzero((ids < 0) | (ids >= model.vocab_size))
            if len(outside):
                raise InputError(
                    f"{name} of {key!r}: expected ids in [0, {model.vocab_size}), got {ids[outside[0]]} at position "
                    f"{outside[0]}. Was it tokenized for another model?"
                )


def per_token(batch: TokenBatch, padded: PaddedBatch) -> Tensor:
    """Temperature of every wanted token: float32 ``[N]``."""
    temperature = torch.from_numpy(batch.temperature).to(padded.sequence_ids.device)
    return temperature[padded.sequence_ids]


def token_tensors(batch: TrainingBatch, padded: PaddedBatch, log_probs: Tensor, entropy: Tensor | None) -> TokenTensors:
    """Flatten a micro-batch's active tokens into what an objective reads.

    Args:
        batch: the micro-batch.
        padded: its layout, which picked the active tokens.
        log_probs: float32 ``[N]``, nats, with gradient.
        entropy: float32 ``[N]``, nats, or None.

    Returns:
        Tensors ``[N]`` of the active tokens alone; their mask is all True.
    """

    def flat(arrays: tuple[FloatArray, ...] | None) -> Tensor | None:
        if arrays is None:
            return None
        chosen = [values[mask] for values, mask in zip(arrays, batch.tokens.response_mask, strict=True)]
        return torch.from_numpy(np.concatenate(chosen).astype(np.float32, copy=False)).to(log_probs.device)

    return TokenTensors(
        log_probs=log_probs,
        mask=torch.ones_like(log_probs, dtype=torch.bool),
        sequence_ids=padded.sequence_ids,
        num_sequences=len(batch.tokens),
        old_log_probs=flat(batch.old_log_probs),
        advantages=flat(batch.advantages),
        ref_log_probs=flat(batch.ref_log_probs),
        rollout_log_probs=flat(batch.rollout_log_probs),
        entropy=entropy,
        keys=batch.tokens.keys,
        positions=padded.positions,
    )


__all__ = ["check_batch", "per_token", "token_tensors"]
