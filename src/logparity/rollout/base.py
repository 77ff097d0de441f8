"""The sampler's side of the seam: what the training loop asks of any rollout engine.

An engine may live in this process (Transformers) or behind HTTP (vLLM, SGLang). It numbers the weights it holds, so
that every rollout says which version sampled it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from logparity.records import EngineInfo, IntArray, Rollout, SamplingSettings

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int, int], None]
"""Called with (responses finished, responses asked for)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One response to sample.

    Args:
        key: stable identity of the sample.
        group: key of the prompt.
        prompt_ids: int64 ``[P]``.
        seed: the response depends on it and on nothing else in the batch.
    """

    key: str
    group: str
    prompt_ids: IntArray
    seed: int


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples responses and reports the log-prob of every sampled token."""

    @property
    def info(self) -> EngineInfo:
        """Name, version, dtype, and log-prob mode."""
        ...

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next `generate` samples from."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: SamplingSettings, progress: Progress | None = None
    ) -> list[Rollout]:
        """Sample one response per request, in the order of the requests."""
        ...

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over new weights (Hugging Face names) under a version number."""
        ...
