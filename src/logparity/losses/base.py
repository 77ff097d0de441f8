"""What every loss takes and gives: flat token tensors in, a scalar and mergeable metrics out.

A loss sees one micro-batch on one rank. Its numerators are sums over the tokens it sees; its denominators are counts
over the whole optimisation step (all micro-batches, all ranks), handed in. So losses of parts add up to the loss of
the whole, and so do their metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


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


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over the whole optimisation step, all micro-batches and data-parallel ranks.

    Args:
        tokens: active tokens.
        sequences: sequences with at least one active token.
    """

    tokens: int
    sequences: int


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

    def __call__(self, tokens: TokenTensors, denominators: Denominators) -> tuple[Tensor, Metrics]:
        """The loss (scalar, with gradient) and its detached metrics."""
        ...
