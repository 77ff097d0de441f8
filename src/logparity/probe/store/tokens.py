"""T3: every valid token of a unit in four bytes, and the ring that keeps the last units for the moment of an alarm."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.store.schemas import TOKENS
from logparity.records import BoolArray, IntArray


def token_table(batch: CapturedBatch, where: dict[str, int], *, token_ids: bool) -> pa.Table:
    """The valid tokens of a batch, one row a sequence.

    Args:
        batch: the tokens; the ratio is taken in float32, then both are rounded to float16.
        where: step, sub_step, rank, attempt.
        token_ids: keep them.

    Returns:
        A table in the schema of T3, 4 bytes per valid token besides the ids.
    """
    slots = np.flatnonzero(batch.mask)
    rollout, train = batch.rollout[slots], batch.train[slots]
    offsets = np.searchsorted(slots, np.append(batch.starts, len(batch.mask))).astype(np.int32)
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = (train - rollout).astype(np.float16)
        rollout = rollout.astype(np.float16)
    turn_offsets, turn_starts, turn_lengths = _turns(batch.mask, batch.starts, batch.lengths)
    ids = _lists(offsets, batch.token_ids[slots]) if token_ids and batch.token_ids is not None else None
    columns = {
        **{name: pa.array(np.full(len(batch), value), TOKENS.field(name).type) for name, value in where.items()},
        "key": pa.array(batch.keys, pa.string()),
        "turn_starts": _lists(turn_offsets, turn_starts),
        "turn_lengths": _lists(turn_offsets, turn_lengths),
        "rollout_log_probs": _lists(offsets, rollout),
        "log_ratio": _lists(offsets, ratio),
        "token_ids": pa.nulls(len(batch), pa.list_(pa.int32())) if ids is None else ids,
    }
    return pa.table([columns[name] for name in TOKENS.names], schema=TOKENS)


class FlightRecorder:
    """The token tables of the last units, in memory, until an alarm wants them.

    Args:
        units: kept at most.
        limit_bytes: kept at most.
    """

    def __init__(self, units: int, limit_bytes: int) -> None:
        self._units, self._limit = units, limit_bytes
        self._ring: deque[tuple[int, pa.Table]] = deque()

    def keep(self, seq: int, table: pa.Table) -> None:
        """Keep a unit; the oldest ones go where there is no room."""
        self._ring.append((seq, table))
        while self._ring and (len(self._ring) > self._units or self._bytes() > self._limit):
            self._ring.popleft()

    def take(self) -> Iterable[tuple[int, pa.Table]]:
        """Hand over what is kept: sequence number and table of each unit."""
        taken, self._ring = list(self._ring), deque()
        return taken

    def _bytes(self) -> int:
        return sum(table.nbytes for _, table in self._ring)


def _lists(offsets: NDArray[Any], values: NDArray[Any]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def _turns(mask: BoolArray, starts: IntArray, lengths: IntArray) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    begins, ends = mask.copy(), mask.copy()
    begins[1:] &= ~mask[:-1]
    ends[:-1] &= ~mask[1:]
    used = lengths > 0
    first, last = starts[used], starts[used] + lengths[used] - 1
    begins[first], ends[last] = mask[first], mask[last]
    turn_slots, turn_ends = np.flatnonzero(begins), np.flatnonzero(ends)
    rows = np.searchsorted(starts, turn_slots, side="right") - 1
    offsets = np.searchsorted(rows, np.arange(len(starts) + 1))
    return (
        offsets.astype(np.int32),
        (turn_slots - starts[rows]).astype(np.int32),
        (turn_ends - turn_slots + 1).astype(np.int32),
    )


__all__ = ["FlightRecorder", "token_table"]
