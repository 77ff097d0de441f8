"""The trainer's side of the seam: what the training loop asks of any actor.

An actor owns the policy's weights and optimizer. It scores batches, takes optimisation steps, and hands its weights
to the rollout engine; how it is spread over processes is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from logparity.records import FloatArray, ScoredTokens, TokenBatch, TrainingBatch, ValueBatch

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Actor(Protocol):
    """Scores tokens under its weights and trains them."""

    @property
    def weight_version(self) -> int:
        """Number of optimisation steps behind the current weights, counted up by the loop's steps."""
        ...

    def score(self, batch: TokenBatch, *, entropy: bool = False) -> ScoredTokens:
        """Log-probs (and entropy) of the response tokens under the current weights, without gradient."""
        ...

    def score_reference(self, batch: TokenBatch) -> ScoredTokens:
        """The same under the frozen reference policy."""
        ...

    def train_step(self, batch: TrainingBatch) -> Mapping[str, float]:
        """One optimisation step on the batch; returns metrics, each a mean over its own denominator."""
        ...

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Current weights in the compute dtype under Hugging Face names, for a rollout engine."""
        ...

    def save_checkpoint(self, folder: Path) -> None:
        """Write weights and optimizer state into an existing, empty folder."""
        ...

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote; training then continues with the same numbers."""
        ...


@runtime_checkable
class Critic(Protocol):
    """Predicts the return of every response token and learns to (PPO)."""

    def values(self, batch: TokenBatch) -> tuple[FloatArray, ...]:
        """``B`` float32 arrays ``[R_b]``: the predicted return before each response token, without gradient."""
        ...

    def train_step(self, batch: ValueBatch) -> Mapping[str, float]:
        """One optimisation step on the batch; returns metrics under ``critic/``."""
        ...

    def save_checkpoint(self, folder: Path) -> None:
        """Write weights and optimizer state into an existing, empty folder."""
        ...

    def load_checkpoint(self, folder: Path) -> None:
        """Restore what `save_checkpoint` wrote."""
        ...
