"""What the store keeps of a run, and how much disk it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from logparity.errors import InputError


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Tiers of the store. Summaries (T0) are always kept; the other tiers can be set to 0.

    Args:
        worst_tokens: T1, tokens kept per unit by ``|log_ratio|`` and as many by ``|dp|``, with context.
        context: tokens on either side of each.
        samples: T2, whole samples kept per unit, drawn by a hash of their key.
        tokens_every: T3, every valid token of each n-th step; 0 keeps none but those of the flight recorder.
        token_ids: keep token ids in T3.
        recorder_units: units whose tokens wait in memory and are written when an alarm fires; 0 keeps none.
        recorder_bytes: what they may take in memory.
        quota_bytes: what this rank's files may take on disk; beyond it the oldest T3, then T2, then T1 are deleted,
            T0 never; None keeps everything.
        decode: turns one token id into text, for T1 and T2; None keeps ids only.

    Raises:
        InputError: a number is negative.
    """

    worst_tokens: int = 32
    context: int = 8
    samples: int = 4
    tokens_every: int = 0
    token_ids: bool = False
    recorder_units: int = 2
    recorder_bytes: int = 256 << 20
    quota_bytes: int | None = 16 << 30
    decode: Callable[[int], str] | None = None

    def __post_init__(self) -> None:
        for name in ("worst_tokens", "context", "samples", "tokens_every", "recorder_units", "recorder_bytes"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}: expected an integer >= 0, got {getattr(self, name)}.")
        if self.quota_bytes is not None and self.quota_bytes < 0:
            raise InputError(f"quota_bytes: expected a number >= 0 or None, got {self.quota_bytes}.")


__all__ = ["StoreConfig"]
