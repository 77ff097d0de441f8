"""What verl's metrics function is not told: the trainer, the step, the samples' keys, the padding rows.

verl hands ``calculate_debug_metrics`` a batch and nothing else. The rest is found in the frame that called it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.integrations.step_probe import HostBatch
from logparity.probe.pairs import PROVIDED_BY, TokenPairs, missing_entries, read_batch

_FRAMES = 6
"""How far up the trainer is looked for: decorators and subclasses stand in between."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The trainer that asked for metrics.

    Args:
        trainer: has ``config`` and ``global_steps``.
        keys: keys of the rows, as the trainer's key-value batch gives them; None where it has none (V0).
        padding: whether each row is synthetic padding; None where the batch does not say.
    """

    trainer: Any
    keys: tuple[str, ...] | None = None
    padding: tuple[bool, ...] | None = None


def find_trainer(frame: FrameType | None) -> tuple[Any, FrameType] | None:
    """The nearest ``self`` up the stack that is a verl trainer, and its frame; None where there is none."""
    for _ in range(_FRAMES):
        if frame is None:
            return None
        candidate = frame.f_locals.get("self")
        if candidate is not None and hasattr(candidate, "config") and hasattr(candidate, "global_steps"):
            return candidate, frame
        frame = frame.f_back
    return None


def find_caller(trainer: Any, frame: FrameType) -> Caller:
    """Keys and padding flags of the batch that the trainer's frame works on."""
    for name in ("batch", "output"):
        meta = frame.f_locals.get(name)
        keys, tags = getattr(meta, "keys", None), getattr(meta, "tags", None)
        if isinstance(keys, list) and isinstance(tags, list) and len(keys) == len(tags):
            padding = tuple(bool(tag.get("is_padding", False)) for tag in tags)
            return Caller(trainer, tuple(str(key) for key in keys), padding)
    return Caller(trainer)


def batch_of(data: Any, caller: Caller) -> HostBatch:
    """The two sides of verl's batch, its entropy and ids where it has them, padding rows left out.

    Args:
        data: verl's ``DataProto``.
        caller: who called.

    Returns:
        The batch, with keys: ``{uid}_{session}_{i}`` from V1; ``{uid}_{n}``, the n-th row of that uid, from V0.

    Raises:
        InputError: an entry is missing, or the keys do not fit the rows.
    """
    if missing := missing_entries(data):
        hints = "; ".join(f"{name}: {PROVIDED_BY[name]}" for name in missing)
        raise InputError(f"batch: expected {', '.join(missing)}, got none. {hints}")
    pairs = read_batch(data)
    rows = len(pairs.mask)
    keys = _uid_keys(data) if caller.keys is None else caller.keys
    if keys is not None and len(keys) != rows:
        raise InputError(f"keys: expected {rows}, one per row of the batch, got {len(keys)}.")
    real = np.ones(rows, np.bool_) if caller.padding is None else ~np.asarray(caller.padding, np.bool_)
    chosen = np.flatnonzero(real)
    return HostBatch(
        pairs=_select(pairs, chosen, keys),
        entropy=_rows(data, "entropy", pairs.mask.shape, chosen),
        token_ids=_rows(data, "responses", pairs.mask.shape, chosen),
    )


def _rows(data: Any, name: str, shape: tuple[int, ...], rows: NDArray[np.int64]) -> Any:
    value = data.batch.get(name, None)
    if value is None or tuple(value.shape) != shape:
        return None
    if hasattr(value, "detach"):
        value = (value.float() if value.is_floating_point() else value).detach().cpu().numpy()
    return value[rows]


def _uid_keys(data: Any) -> tuple[str, ...] | None:
    uids: Sequence[Any] | None = (getattr(data, "non_tensor_batch", None) or {}).get("uid")
    if uids is None:
        return None
    seen: Counter[str] = Counter()
    keys = []
    for uid in map(str, uids):
        keys.append(f"{uid}_{seen[uid]}")
        seen[uid] += 1
    return tuple(keys)


def _select(pairs: TokenPairs, rows: NDArray[np.int64], keys: tuple[str, ...] | None) -> TokenPairs:
    return TokenPairs(
        rollout_log_probs=pairs.rollout_log_probs[rows],
        old_log_probs=pairs.old_log_probs[rows],
        mask=pairs.mask[rows],
        keys=None if keys is None else tuple(keys[row] for row in rows),
        mask_name=pairs.mask_name,
    )


__all__ = ["Caller", "batch_of", "find_caller", "find_trainer"]
