"""What every reader returns: the two sides of one step, sequence by sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logparity.errors import InputError
from logparity.probe.pairs import TokenPairs
from logparity.records import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class TokenDump:
    """Token log-probs of one step.

    Args:
        step: training step; None where the file does not say.
        rollout_log_probs: ``B`` float32 arrays ``[R_b]``, nats; NaN where the file has none.
        old_log_probs: the same from the trainer.
        response_mask: ``B`` bool arrays ``[R_b]``.
        keys: ``B`` sample keys; None where the file has none.
        token_ids: ``B`` int64 arrays ``[R_b]``; None where the file has none.
        notes: what was assumed about the file: layout, shift, mask.

    Raises:
        InputError: the arrays of a sequence differ in length.
    """

    step: int | None
    rollout_log_probs: tuple[FloatArray, ...]
    old_log_probs: tuple[FloatArray, ...]
    response_mask: tuple[BoolArray, ...]
    keys: tuple[str, ...] | None = None
    token_ids: tuple[IntArray, ...] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sides = [self.rollout_log_probs, self.old_log_probs, self.response_mask]
        if self.token_ids is not None:
            sides.append(self.token_ids)
        if len({len(side) for side in sides}) > 1:
            raise InputError(f"sequences: expected as many of each entry, got {[len(side) for side in sides]}.")
        for row, parts in enumerate(zip(*sides, strict=True)):
            if len({part.shape for part in parts}) > 1:
                raise InputError(
                    f"sequence {row}: expected entries of one length, got {[part.shape for part in parts]}."
                )
        if self.keys is not None and len(self.keys) != len(self):
            raise InputError(f"keys: expected {len(self)}, one per sequence, got {len(self.keys)}.")

    def __len__(self) -> int:
        """Number of sequences ``B``."""
        return len(self.rollout_log_probs)

    def pairs(self) -> TokenPairs:
        """Both sides padded to the longest sequence, for the comparison."""
        width = max((len(mask) for mask in self.response_mask), default=0)
        rollout, old = (np.zeros((len(self), width), np.float32) for _ in range(2))
        mask = np.zeros((len(self), width), np.bool_)
        for row, length in enumerate(map(len, self.response_mask)):
            rollout[row, :length] = self.rollout_log_probs[row]
            old[row, :length] = self.old_log_probs[row]
            mask[row, :length] = self.response_mask[row]
        return TokenPairs(rollout, old, mask, self.keys)


__all__ = ["TokenDump"]
