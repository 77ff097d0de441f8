"""One call's tokens, row after row, as the metrics core reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from logparity.records import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A row whose arrays do not have one length; it is left out of everything but the census.

    Args:
        row: number in the call.
        key: of the sample.
        lengths: entry to number of tokens.
    """

    row: int
    key: str
    lengths: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CapturedBatch:
    """``B`` rows of slots, one after another: ``N`` in all.

    Args:
        rollout: float32 ``[N]``, nats.
        train: float32 ``[N]``, nats.
        mask: bool ``[N]``; what the arrays hold where it is False is never looked at.
        lengths: int64 ``[B]``, slots of each row, padding included.
        keys: ``B`` sample keys.
        layout: how the call gave them, for people.
        token_ids: int32 ``[N]``.
        entropy: float32 ``[N]``, nats.
        lag: int64 ``[N]`` or ``[B]``, ``train_version - version``.
        groups: group key to ``B`` labels.
        missing: bool ``[N]``, True where either log-prob was None; None where no entry was.
        mismatches: rows left out.
        duplicates: rows whose mask was cleared, because their key came before in the unit.
        keyed: whether the caller gave the keys; row numbers identify nothing across calls.
    """

    rollout: FloatArray
    train: FloatArray
    mask: BoolArray
    lengths: IntArray
    keys: tuple[str, ...]
    layout: str
    token_ids: IntArray | None = None
    entropy: FloatArray | None = None
    lag: IntArray | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: BoolArray | None = None
    mismatches: tuple[Mismatch, ...] = ()
    duplicates: tuple[int, ...] = ()
    keyed: bool = True

    @property
    def starts(self) -> IntArray:
        """First slot of each row, int64 ``[B]``."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        """Number of rows ``B``."""
        return len(self.lengths)

    def without_seen(self, seen: set[str]) -> CapturedBatch:
        """Leave rows out whose key is in ``seen`` or came before in this batch; adds the others to ``seen``."""
        repeated = []
        for row, key in enumerate(self.keys):
            if key in seen:
                repeated.append(row)
            seen.add(key)
        if not repeated:
            return self
        mask, starts = self.mask.copy(), self.starts
        for row in repeated:
            mask[starts[row] : starts[row] + self.lengths[row]] = False
        return replace(self, mask=mask, duplicates=tuple(repeated))


__all__ = ["CapturedBatch", "Mismatch"]
