"""One batch of responses: prefill each distinct prompt once, then decode token by token with a KV cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logparity.errors import NonFiniteError
from logparity.records import FinishReason, IntArray, LogProbMode, SamplingSettings
from logparity.rollout.base import Request
from logparity.rollout.sampling import sample

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_COMPACT_BELOW = 0.75
"""Finished rows leave the batch when less than this share still runs: leaving copies the cache once."""


@dataclass(slots=True)
class Response:
    """A response while it grows."""

    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class _Rows:
    """The rows in the batch: their cache, what they attend to, where they stand, whose they are."""

    cache: Any
    mask: Tensor | None
    positions: Tensor
    owners: list[int]

    def select(self, rows: list[int], owners: list[int]) -> None:
        """Keep, drop, or repeat rows."""
        index = torch.tensor(rows, device=self.positions.device)
        self.cache.batch_select_indices(index)
        self.mask = None if self.mask is None else self.mask[index]
        self.positions = self.positions[index]
        self.owners = owners


@torch.inference_mode()
def decode_batch(
    model: PreTrainedModel,
    requests: Sequence[Request],
    sampling: SamplingSettings,
    mode: LogProbMode,
    on_finished: Callable[[], None],
) -> list[Response]:
    """Sample one response per request.

    Args:
        model: a causal language model in evaluation mode.
        requests: the batch; equal prompts are read once.
        sampling: how tokens are drawn.
        mode: which distribution the log-probs belong to.
        on_finished: called once per finished response.

    Returns:
        One response per request, in order.

    Raises:
        NonFiniteError: the model gave NaN or ``+inf`` logits; names the request and the position.
    """
    responses = [Response() for _ in requests]
    uniforms = torch.stack([_uniforms(r.seed, sampling.max_new_tokens) for r in requests]).to(model.device)
    rows, logits = _prefill(model, requests)
    for step in range(sampling.max_new_tokens):
        ids, log_probs = sample(logits, uniforms[rows.owners, step], sampling, mode)
        _record(responses, requests, rows.owners, ids.tolist(), log_probs.tolist(), sampling, on_finished)
        running = [row for row, owner in enumerate(rows.owners) if responses[owner].finish_reason is None]
        if not running:
            break
        if len(running) < _COMPACT_BELOW * len(rows.owners):
            ids = ids[torch.tensor(running, device=ids.device)]
            rows.select(running, [rows.owners[row] for row in running])
        logits = _step(model, rows, ids)
    return responses


def _record(
    responses: list[Response],
    requests: Sequence[Request],
    owners: list[int],
    ids: list[int],
    log_probs: list[float],
    sampling: SamplingSettings,
    on_finished: Callable[[], None],
) -> None:
    """Append one token to every response that still runs, and close those that end with it."""
    for owner, token, log_prob in zip(owners, ids, log_probs, strict=True):
        response = responses[owner]
        if response.finish_reason is not None:
            continue
        if not np.isfinite(log_prob):
            raise NonFiniteError(
                f"sampling {requests[owner].key!r}: expected finite logits, got a log-prob of {log_prob} at response "
                f"token {len(response.ids)}. The weights hold NaN or infinite values, or the dtype overflows."
            )
        response.ids.append(token)
        response.log_probs.append(log_prob)
        if token in sampling.stop_token_ids:
            response.finish_reason = FinishReason.STOP
        elif len(response.ids) == sampling.max_new_tokens:
            response.finish_reason = FinishReason.LENGTH
        if response.finish_reason is not None:
            on_finished()


def _prefill(model: PreTrainedModel, requests: Sequence[Request]) -> tuple[_Rows, Tensor]:
    """Read the distinct prompts, padded on the left, then give every request a row of its own."""
    numbers: dict[bytes, int] = {}
    prompt_of = [numbers.setdefault(request.prompt_ids.tobytes(), len(numbers)) for request in requests]
    prompts = [requests[prompt_of.index(number)].prompt_ids for number in range(len(numbers))]
    ids, mask = _left_padded(prompts, model.device)
    positions = (mask.cumsum(dim=-1) - 1).clamp_(min=0)
    # Without padding the mask says nothing, and attention is faster when it is not there.
    rows = _Rows(None, None if bool(mask.all()) else mask, positions[:, -1], list(range(len(prompts))))
    output = model(input_ids=ids, attention_mask=rows.mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    rows.cache = _cache_of(output)
    logits = output.logits[:, -1]
    everyone = list(range(len(requests)))
    if prompt_of != everyone:
        rows.select(prompt_of, everyone)
        logits = logits[torch.tensor(prompt_of, device=logits.device)]
    return rows, logits


def _step(model: PreTrainedModel, rows: _Rows, ids: Tensor) -> Tensor:
    """Feed one token per row; the next token's logits ``[B, V]``."""
    rows.positions = rows.positions + 1
    if rows.mask is not None:
        rows.mask = torch.cat([rows.mask, rows.mask.new_ones(len(rows.owners), 1)], dim=1)
    output = model(
        input_ids=ids[:, None],
        attention_mask=rows.mask,
        position_ids=rows.positions[:, None],
        use_cache=True,
        logits_to_keep=1,
        **{_cache_argument(model): rows.cache},
    )
    rows.cache = _cache_of(output)
    logits: Tensor = output.logits[:, -1]
    return logits


def _left_padded(prompts: Sequence[IntArray], device: torch.device) -> tuple[Tensor, Tensor]:
    """``[B, P]`` ids and their 0/1 mask; padding on the left, so that every prompt ends in the last column."""
    width = max(len(p) for p in prompts)
    ids = np.zeros((len(prompts), width), dtype=np.int64)
    mask = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def _uniforms(seed: int, count: int) -> Tensor:
    """A request's own random numbers, one per token, drawn on the CPU so that every device samples alike."""
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _cache_of(output: Any) -> Any:
    """The KV cache of a model output; transformers renamed the field."""
    return output["cache"] if "cache" in output else output["past_key_values"]


def _cache_argument(model: PreTrainedModel) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


__all__ = ["Response", "decode_batch"]
