"""Frozen data passed between the parts: what was sampled, what is scored, what came back.

Everything here is numpy and plain Python, so that the probe and the report read it without torch. A record is
validated once, where it enters; the parts that receive it trust it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float32]
BoolArray: TypeAlias = NDArray[np.bool_]


class LogProbMode(str, Enum):
    """Which distribution a rollout engine's log-probs belong to."""

    RAW = "raw"
    """The model's own distribution: before temperature, top-k, top-p, min-p."""
    PROCESSED = "processed"
    """The distribution that was sampled from: after temperature and, where they cut, top-k, top-p, min-p."""


class FinishReason(str, Enum):
    """Why a response ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens were drawn; declared with every rollout because log-probs mean nothing without it.

    Args:
        temperature: divides logits; > 0.
        top_p: nucleus mass in (0, 1]; 1 keeps everything.
        top_k: number of ids kept; 0 keeps everything.
        min_p: smallest kept probability relative to the largest, in [0, 1); 0 keeps everything.
        max_new_tokens: upper bound on the response length; >= 1.
        stop_token_ids: ids that end a response (the stop token itself is part of it).

    Raises:
        InputError: a value is outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _require(
            np.isfinite(self.temperature) and self.temperature > 0,
            "temperature",
            "a finite number > 0",
            self.temperature,
        )
        _require(0 < self.top_p <= 1, "top_p", "a number in (0, 1]", self.top_p)
        _require(self.top_k >= 0, "top_k", "an integer >= 0 (0 keeps every id)", self.top_k)
        _require(0 <= self.min_p < 1, "min_p", "a number in [0, 1)", self.min_p)
        _require(self.max_new_tokens >= 1, "max_new_tokens", "an integer >= 1", self.max_new_tokens)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Who sampled, and which log-probs it reports.

    Args:
        name: engine, e.g. ``"transformers"``, ``"vllm"``.
        version: its version string.
        dtype: compute dtype, e.g. ``"bfloat16"``.
        log_prob_mode: which distribution ``rollout_log_probs`` belongs to.
    """

    name: str
    version: str
    dtype: str
    log_prob_mode: LogProbMode


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response with everything needed to score it again.

    Args:
        key: stable identity of the sample; survives reordering and padding.
        group: key of the prompt; responses with the same group are compared with each other.
        prompt_ids: int64 ``[P]``, ``P >= 1``.
        response_ids: int64 ``[R]``.
        rollout_log_probs: float32 ``[R]``, nats, of the sampled tokens as the engine reported them.
        response_mask: bool ``[R]``; False on tool output.
        weight_version: version of the weights that sampled it.
        sampling: how the tokens were drawn.
        engine: who drew them.
        finish_reason: why the response ended.
        text: the decoded response, where a tokenizer was at hand.

    Raises:
        InputError: lengths differ, an id is negative, a mask is not 0/1, or a log-prob of an active token is not
            finite or is positive.
    """

    key: str
    group: str
    prompt_ids: IntArray
    response_ids: IntArray
    rollout_log_probs: FloatArray
    response_mask: BoolArray
    weight_version: int
    sampling: SamplingSettings
    engine: EngineInfo
    finish_reason: FinishReason = FinishReason.LENGTH
    text: str | None = None

    def __post_init__(self) -> None:
        _freeze(self, "prompt_ids", _ids(self.prompt_ids, f"prompt_ids of {self.key!r}"))
        _freeze(self, "response_ids", _ids(self.response_ids, f"response_ids of {self.key!r}"))
        _freeze(self, "rollout_log_probs", np.asarray(self.rollout_log_probs, dtype=np.float32))
        _freeze(self, "response_mask", _mask(self.response_mask, f"response_mask of {self.key!r}"))
        _require(len(self.prompt_ids) >= 1, f"prompt_ids of {self.key!r}", "at least one id", "none")
        _same_length(self.key, self.response_ids, self.rollout_log_probs, "rollout_log_probs")
        _same_length(self.key, self.response_ids, self.response_mask, "response_mask")
        _log_probs_valid(self.key, self.rollout_log_probs, self.response_mask)

    def __len__(self) -> int:
        """Response length ``R``."""
        return len(self.response_ids)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """``B`` ragged sequences to score: prompts, responses, and the temperature that divides their logits.

    Args:
        keys: ``B`` sample keys.
        prompt_ids: ``B`` int64 arrays ``[P_b]``.
        response_ids: ``B`` int64 arrays ``[R_b]``.
        response_mask: ``B`` bool arrays ``[R_b]``.
        temperature: float32 ``[B]``, > 0.

    Raises:
        InputError: the tuples differ in length, or a sequence's arrays do.
    """

    keys: tuple[str, ...]
    prompt_ids: tuple[IntArray, ...]
    response_ids: tuple[IntArray, ...]
    response_mask: tuple[BoolArray, ...]
    temperature: FloatArray

    def __post_init__(self) -> None:
        _freeze(self, "temperature", np.asarray(self.temperature, dtype=np.float32))
        for name in ("prompt_ids", "response_ids", "response_mask", "temperature"):
            got = len(getattr(self, name))
            _require(got == len(self.keys), name, f"{len(self.keys)} entries, one per key", f"{got}")
        _require(
            bool(np.all(np.isfinite(self.temperature) & (self.temperature > 0))),
            "temperature",
            "finite numbers > 0",
            self.temperature,
        )
        for key, ids, mask in zip(self.keys, self.response_ids, self.response_mask, strict=True):
            _same_length(key, ids, mask, "response_mask")

    @classmethod
    def from_rollouts(cls, rollouts: Sequence[Rollout]) -> TokenBatch:
        """Collect rollouts into a batch, at the temperature each was sampled with."""
        return cls(
            keys=tuple(r.key for r in rollouts),
            prompt_ids=tuple(r.prompt_ids for r in rollouts),
            response_ids=tuple(r.response_ids for r in rollouts),
            response_mask=tuple(r.response_mask for r in rollouts),
            temperature=np.asarray([r.sampling.temperature for r in rollouts], dtype=np.float32),
        )

    def __len__(self) -> int:
        """Number of sequences ``B``."""
        return len(self.keys)

    def at_temperature(self, temperature: float) -> TokenBatch:
        """The same sequences, every one at ``temperature``."""
        return replace(self, temperature=np.full(len(self), temperature, dtype=np.float32))

    @property
    def active_tokens(self) -> int:
        """Number of tokens with mask 1 over the batch."""
        return int(sum(int(mask.sum()) for mask in self.response_mask))

    def select(self, indices: Sequence[int]) -> TokenBatch:
        """The sequences at ``indices``, in that order."""
        return replace(
            self,
            keys=tuple(self.keys[i] for i in indices),
            prompt_ids=tuple(self.prompt_ids[i] for i in indices),
            response_ids=tuple(self.response_ids[i] for i in indices),
            response_mask=tuple(self.response_mask[i] for i in indices),
            temperature=self.temperature[list(indices)],
        )


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Log-probs of a batch's response tokens under one set of weights.

    Args:
        keys: ``B`` sample keys, in the order of the batch that was scored.
        log_probs: ``B`` float32 arrays ``[R_b]``, nats.
        entropy: ``B`` float32 arrays ``[R_b]``, nats, of the full vocabulary; None where it was not asked for.
        weight_version: version of the weights that scored.
    """

    keys: tuple[str, ...]
    log_probs: tuple[FloatArray, ...]
    entropy: tuple[FloatArray, ...] | None = None
    weight_version: int = 0

    def __post_init__(self) -> None:
        _require(
            len(self.log_probs) == len(self.keys),
            "log_probs",
            f"{len(self.keys)} arrays, one per key",
            len(self.log_probs),
        )
        if self.entropy is not None:
            _require(
                len(self.entropy) == len(self.keys),
                "entropy",
                f"{len(self.keys)} arrays, one per key",
                len(self.entropy),
            )

    def __iter__(self) -> Iterator[tuple[str, FloatArray]]:
        """Pairs of key and log-probs, in order."""
        return iter(zip(self.keys, self.log_probs, strict=True))


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch with its training signal: what one optimisation step reads.

    Args:
        tokens: the sequences.
        advantages: ``B`` float32 arrays ``[R_b]``; None for a loss that reads none (SFT).
        old_log_probs: ``B`` float32 arrays ``[R_b]``, nats, from the weights before the update.
        ref_log_probs: the same from the frozen reference policy; None without a KL term.
        rollout_log_probs: the same as the rollout engine reported them; None without an off-policy correction.

    Raises:
        InputError: a tuple does not have one array per sequence, or an array one value per response token.
    """

    tokens: TokenBatch
    advantages: tuple[FloatArray, ...] | None = None
    old_log_probs: tuple[FloatArray, ...] | None = None
    ref_log_probs: tuple[FloatArray, ...] | None = None
    rollout_log_probs: tuple[FloatArray, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("advantages", "old_log_probs", "ref_log_probs", "rollout_log_probs"):
            _per_token(self.tokens, getattr(self, name), name)

    def select(self, indices: Sequence[int]) -> TrainingBatch:
        """The sequences at ``indices``, in that order."""
        return TrainingBatch(
            tokens=self.tokens.select(indices),
            advantages=_select(self.advantages, indices),
            old_log_probs=_select(self.old_log_probs, indices),
            ref_log_probs=_select(self.ref_log_probs, indices),
            rollout_log_probs=_select(self.rollout_log_probs, indices),
        )


@dataclass(frozen=True, slots=True)
class ValueBatch:
    """A batch for one optimisation step of a value model.

    Args:
        tokens: the sequences.
        old_values: ``B`` float32 arrays ``[R_b]``, before the update.
        returns: ``B`` float32 arrays ``[R_b]``, what the values should have been.

    Raises:
        InputError: a tuple does not have one array per sequence, or an array one value per response token.
    """

    tokens: TokenBatch
    old_values: tuple[FloatArray, ...]
    returns: tuple[FloatArray, ...]

    def __post_init__(self) -> None:
        _per_token(self.tokens, self.old_values, "old_values")
        _per_token(self.tokens, self.returns, "returns")

    def select(self, indices: Sequence[int]) -> ValueBatch:
        """The sequences at ``indices``, in that order."""
        return ValueBatch(
            tokens=self.tokens.select(indices),
            old_values=tuple(self.old_values[i] for i in indices),
            returns=tuple(self.returns[i] for i in indices),
        )


def _per_token(tokens: TokenBatch, arrays: tuple[FloatArray, ...] | None, name: str) -> None:
    if arrays is None:
        return
    _require(len(arrays) == len(tokens), name, f"{len(tokens)} arrays, one per sequence", len(arrays))
    for key, ids, values in zip(tokens.keys, tokens.response_ids, arrays, strict=True):
        _same_length(key, ids, values, name)


def _select(arrays: tuple[FloatArray, ...] | None, indices: Sequence[int]) -> tuple[FloatArray, ...] | None:
    return None if arrays is None else tuple(arrays[i] for i in indices)


def _freeze(record: object, name: str, value: object) -> None:
    object.__setattr__(record, name, value)


def _require(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise InputError(f"{name}: expected {expected}, got {got}.")


def _ids(values: object, name: str) -> IntArray:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    _require(array.ndim == 1, name, "a 1-D array", f"shape {array.shape}")
    _require(np.issubdtype(array.dtype, np.integer), name, "integers", array.dtype)
    _require(int(array.min()) >= 0, name, "ids >= 0", f"{int(array.min())} at position {int(array.argmin())}")
    return array.astype(np.int64)


def _mask(values: object, name: str) -> BoolArray:
    array = np.asarray(values)
    _require(
        bool(np.isin(array, (0, 1)).all()), name, "only 0 and 1", f"values such as {array[~np.isin(array, (0, 1))][:3]}"
    )
    return array.astype(np.bool_)


def _same_length(key: str, ids: IntArray, values: NDArray[np.generic], name: str) -> None:
    if len(values) == len(ids):
        return
    hint = ""
    if len(values) == len(ids) + 1:
        hint = (
            " One more value than ids: the engine probably reported the prompt's last position or the end token as "
            "well; drop that entry."
        )
    raise InputError(
        f"{name} of sample {key!r}: expected {len(ids)} values, one per response id, got {len(values)}.{hint}"
    )


def _log_probs_valid(key: str, log_probs: FloatArray, mask: BoolArray) -> None:
    active = log_probs[mask]
    bad = ~np.isfinite(active) | (active > 0)
    if bad.any():
        position = int(np.flatnonzero(mask)[np.flatnonzero(bad)[0]])
        raise InputError(
            f"rollout_log_probs of sample {key!r}: expected finite values <= 0 on active tokens, got "
            f"{log_probs[position]} at position {position} ({int(bad.sum())} in all). "
            "Set response_mask to 0 where the engine gave no log-prob."
        )


__all__ = [
    "BoolArray",
    "EngineInfo",
    "FinishReason",
    "FloatArray",
    "IntArray",
    "LogProbMode",
    "Rollout",
    "SamplingSettings",
    "ScoredTokens",
    "TokenBatch",
    "TrainingBatch",
    "ValueBatch",
]
