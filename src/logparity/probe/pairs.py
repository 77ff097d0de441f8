"""The two log-probs of every response token, side by side in one padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logparity.errors import InputError
from logparity.probe.arrays import as_float32, as_mask
from logparity.records import BoolArray, FloatArray, Rollout, ScoredTokens

PROVIDED_BY: Mapping[str, str] = {
    "rollout_log_probs": "the engine has to report them (verl: actor_rollout_ref.rollout.calculate_log_probs=True)",
    "old_log_probs": "score the batch with the trainer before the comparison (verl: compute_log_prob of the actor)",
    "responses": "the response ids give the response width R",
    "response_mask": "pass response_mask [B, R], or attention_mask [B, P+R]",
}
"""Where each needed entry of a batch comes from, for the warning that it is missing."""


@dataclass(frozen=True, slots=True)
class TokenPairs:
    """Log-probs of ``B`` responses as the rollout engine and as the trainer gave them, padded to ``R`` positions.

    Args:
        rollout_log_probs: float32 ``[B, R]``, nats.
        old_log_probs: float32 ``[B, R]``, nats.
        mask: bool ``[B, R]``; what the arrays hold where it is False is never looked at.
        keys: ``B`` sample keys; None where the batch names its rows by nothing but their number.
        mask_name: the entry that the mask was taken from.

    Raises:
        InputError: the arrays differ in shape, or there is not one key a row.
    """

    rollout_log_probs: FloatArray
    old_log_probs: FloatArray
    mask: BoolArray
    keys: tuple[str, ...] | None = None
    mask_name: str = "response_mask"

    def __post_init__(self) -> None:
        expected = self.mask.shape
        if len(expected) != 2:
            raise InputError(f"{self.mask_name}: expected shape [B, R], got {expected}.")
        for name in ("rollout_log_probs", "old_log_probs"):
            got = getattr(self, name).shape
            if got != expected:
                raise InputError(
                    f"{name}: expected shape {expected} as {self.mask_name}, got {got}. Give the response columns only."
                )
        if self.keys is not None and len(self.keys) != expected[0]:
            raise InputError(f"keys: expected {expected[0]} sample keys, one per row, got {len(self.keys)}.")

    @classmethod
    def from_rollouts(cls, rollouts: Sequence[Rollout], scored: ScoredTokens) -> TokenPairs:
        """Pair rollouts with their scores by sample key, and pad both to the longest response.

        Args:
            rollouts: what the engine sampled; their order is the order of the rows.
            scored: what the trainer computed, in any order; may hold more keys than asked for.

        Returns:
            One row per rollout.

        Raises:
            InputError: a key repeats, has no score, or has a score of another length.
        """
        keys = tuple(r.key for r in rollouts)
        scores = dict(iter(scored))
        if len(set(keys)) < len(keys) or len(scores) < len(scored.keys):
            raise InputError("keys: expected every sample key once, got repeated ones. Make keys unique per response.")
        width = max((len(r) for r in rollouts), default=0)
        rollout_log_probs, old_log_probs = (np.zeros((len(keys), width), np.float32) for _ in range(2))
        mask = np.zeros((len(keys), width), np.bool_)
        for row, rollout in enumerate(rollouts):
            score = scores.get(rollout.key)
            if score is None or len(score) != len(rollout):
                got = "none" if score is None else f"{len(score)}"
                raise InputError(
                    f"log_probs of sample {rollout.key!r}: expected {len(rollout)}, one per response id, got {got}."
                )
            rollout_log_probs[row, : len(rollout)] = rollout.rollout_log_probs
            old_log_probs[row, : len(rollout)] = score
            mask[row, : len(rollout)] = rollout.response_mask
        return cls(rollout_log_probs, old_log_probs, mask, keys)


def missing_entries(data: Any) -> list[str]:
    """Entries that the comparison needs and the batch lacks, in the order of `PROVIDED_BY`."""
    present = _present(data)
    missing = [name for name in PROVIDED_BY if name not in present]
    if "attention_mask" in present and "response_mask" in missing:
        missing.remove("response_mask")
    return missing


def read_batch(data: Any, keys: Sequence[str] | None = None) -> TokenPairs:
    """Take the comparison's arrays out of a trainer's batch.

    Args:
        data: has ``batch``, a mapping with ``rollout_log_probs``, ``old_log_probs``, ``responses`` ``[B, R]`` and
            ``response_mask`` ``[B, R]``; failing that ``attention_mask`` ``[B, P+R]``, whose last ``R`` columns serve.
        keys: ``B`` sample keys.

    Returns:
        The pairs; numpy views where the batch holds float32 on the CPU.

    Raises:
        InputError: an entry is missing or has another shape.
    """
    missing = missing_entries(data)
    if missing:
        raise InputError(f"batch: expected {', '.join(PROVIDED_BY)}, got no {', no '.join(missing)}.")
    batch = getattr(data, "batch", data)
    mask_name = "response_mask" if "response_mask" in _present(data) else "attention_mask"
    width = int(batch["responses"].shape[1])
    mask = as_mask(batch[mask_name], mask_name)
    if mask.ndim == 2 and mask.shape[1] > width:
        mask = mask[:, mask.shape[1] - width :]
    return TokenPairs(
        rollout_log_probs=as_float32(batch["rollout_log_probs"], "rollout_log_probs"),
        old_log_probs=as_float32(batch["old_log_probs"], "old_log_probs"),
        mask=mask,
        keys=None if keys is None else tuple(str(key) for key in keys),
        mask_name=mask_name,
    )


def _present(data: Any) -> set[str]:
    batch = getattr(data, "batch", data)
    # A TensorDict answers `in` on its keys only.
    return {str(name) for name in batch.keys() if batch[name] is not None}  # noqa: SIM118


__all__ = ["PROVIDED_BY", "TokenPairs", "missing_entries", "read_batch"]
