"""What every loss takes and gives: flat token tensors in, a scalar and mergeable metrics out.

A loss sees one micro-batch on one rank. Its numerators are sums over the tokens it sees; its denominators are counts
over the whole optimisation step (all micro-batches, all ranks), handed in. So losses of parts add up to the loss of
the whole, and so do their metrics.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, SupportsIndex

from logparity.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class SequenceSum(Protocol):
    """Adds per-sequence numbers over the ranks that share the sequences (context parallelism).

    Every rank of the group calls it the same number of times, also one that owns no token. No gradient flows through
    it: losses are written so that none has to.
    """

    def __call__(self, per_sequence: Tensor) -> Tensor:
        """The sum over the ranks of a ``[K, S]`` tensor, on every rank."""
        ...


class LogitPrecision(Enum):
    """The precision a loss needs of the logits it is computed from."""

    MODEL = "model"
    """Model precision (bf16/fp16/fp32); upcast chunk by chunk inside the log-prob operation."""
    FP32 = "fp32"
    """A full fp32 output, as value heads need it."""


class EntropyMode(str, Enum):
    """Whether a loss needs the entropy, and whether a gradient flows through it."""

    NONE = "none"
    VALUE = "value"
    GRAD = "grad"


@dataclass(frozen=True, slots=True)
class TokenTensors:
    """``N`` response tokens of one micro-batch, all tensors ``[N]`` on one device.

    Args:
        log_probs: float32, nats, with gradient: the policy that is trained.
        mask: bool; False tokens are selected out before any arithmetic and may hold anything.
        sequence_ids: int64 in ``[0, num_sequences)``: the sequence each token belongs to.
        num_sequences: number of sequences in this micro-batch, those without active tokens included.
        old_log_probs: float32, nats: the policy before the update.
        advantages: float32.
        ref_log_probs: float32, nats: the frozen reference policy.
        rollout_log_probs: float32, nats: what the rollout engine reported.
        entropy: float32, nats, of the full vocabulary.
        sequence_sum: adds per-sequence numbers over the ranks that hold parts of these sequences; None where each
            sequence is whole on this rank.
        keys: ``num_sequences`` sample keys, named in errors.
        positions: int64 ``[N]``: index of each token in its response, named in errors.
    """

    log_probs: Tensor
    mask: Tensor
    sequence_ids: Tensor
    num_sequences: int
    old_log_probs: Tensor | None = None
    advantages: Tensor | None = None
    ref_log_probs: Tensor | None = None
    rollout_log_probs: Tensor | None = None
    entropy: Tensor | None = None
    sequence_sum: SequenceSum | None = None
    keys: tuple[str, ...] | None = None
    positions: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ValueTensors:
    """``N`` response tokens of one micro-batch for a value head, all tensors ``[N]`` on one device.

    Args:
        values: float32, with gradient.
        mask: bool; False tokens are selected out before any arithmetic and may hold anything.
        sequence_ids: int64 in ``[0, num_sequences)``.
        num_sequences: number of sequences in this micro-batch.
        old_values: float32, before the update.
        returns: float32, what the values should have been.
        sequence_sum: as in `TokenTensors`.
        keys: as in `TokenTensors`.
        positions: as in `TokenTensors`.
    """

    values: Tensor
    mask: Tensor
    sequence_ids: Tensor
    num_sequences: int
    old_values: Tensor
    returns: Tensor
    sequence_sum: SequenceSum | None = None
    keys: tuple[str, ...] | None = None
    positions: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over the whole optimisation step, all micro-batches and data-parallel ranks.

    Args:
        tokens: active tokens.
        sequences: sequences with at least one active token; one that lies on several ranks counts once.
        mean_weight: mean off-policy correction weight, for a correction with ``batch_normalise``.

    Raises:
        InputError: a count is no integer or negative, there are more sequences than tokens, or the mean weight is no
            finite number >= 0.
    """

    tokens: int
    sequences: int
    mean_weight: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "sequences"):
            object.__setattr__(self, name, _count(getattr(self, name), name))
        if self.mean_weight is not None and not 0 <= self.mean_weight < float("inf"):
            raise InputError(f"mean_weight: expected a finite number >= 0 or None, got {self.mean_weight}.")
        if not 0 <= self.sequences <= self.tokens:
            raise InputError(
                f"Denominators: expected 0 <= sequences <= tokens, got {self.sequences} sequences and {self.tokens} "
                "tokens. Count active tokens, and sequences with at least one active token, over the whole step."
            )


def _count(value: object, name: str) -> int:
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        with suppress(TypeError):  # a tensor of floats has the method, and refuses
            return operator.index(value)
    raise InputError(f"Denominators: expected {name} as an integer, a count over the whole step, got {value!r}.")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A mean that can be merged: numerators add, denominators add.

    Args:
        numerator: detached scalar tensor or float: a sum over this micro-batch.
        denominator: detached scalar tensor or float: the count that sum is over.
    """

    numerator: Tensor | float
    denominator: Tensor | float

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.numerator + other.numerator, self.denominator + other.denominator)

    def value(self) -> float | None:
        """The mean, or None where nothing was counted."""
        count = float(self.denominator)
        return float(self.numerator) / count if count else None


Metrics = Mapping[str, Ratio]


def merge_metrics(parts: Iterable[Metrics]) -> dict[str, Ratio]:
    """Metrics of the whole from the metrics of its parts (micro-batches, ranks)."""
    merged: dict[str, Ratio] = {}
    for part in parts:
        for name, ratio in part.items():
            merged[name] = merged[name] + ratio if name in merged else ratio
    return merged


class Objective(Protocol):
    """A loss over response tokens, with what it asks of the operation that computes its log-probs."""

    @property
    def precision(self) -> LogitPrecision:
        """Precision of the logits it may be computed from."""
        ...

    @property
    def entropy(self) -> EntropyMode:
        """Whether it needs the entropy."""
        ...

    @property
    def temperature(self) -> float | None:
        """The temperature its log-probs must be taken at; None for the one each sequence was sampled with."""
        ...

    def __call__(self, tokens: TokenTensors, denominators: Denominators) -> tuple[Tensor, Metrics]:
        """The loss (scalar, with gradient) and its detached metrics."""
        ...
