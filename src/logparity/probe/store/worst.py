"""T1: the worst tokens of a unit, each with what stood around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from logparity.probe.metrics.walk import Block
from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.store.schemas import WORST
from logparity.probe.store.texts import texts_of
from logparity.records import FloatArray

_Entry = tuple[float, str, int, dict[str, Any]]


class WorstTokens:
    """Keeps the ``limit`` tokens with the largest ``|log_ratio|``, and as many by ``|dp|``.

    Args:
        limit: tokens per measure.
        context: tokens on either side.
    """

    def __init__(self, limit: int, context: int) -> None:
        self._limit, self._context = limit, context
        self._kept: dict[str, list[_Entry]] = {"log_ratio": [], "prob_diff": []}

    def see(self, block: Block) -> None:
        """Look at a block."""
        if not self._limit:
            return
        for measure, values in (("log_ratio", block.values.log_ratio_abs), ("prob_diff", block.values.prob_diff)):
            kept = self._kept[measure]
            least = -kept[-1][0] if len(kept) == self._limit else 0.0
            if float(values.max()) > least:
                found = [self._entry(block, int(index), values) for index in _largest(values, self._limit, least)]
                self._kept[measure] = sorted([*kept, *found], key=lambda entry: entry[:3])[: self._limit]

    def table(self, where: dict[str, int], decode: Callable[[int], str] | None) -> pa.Table:
        """The tokens as a table, the largest ``|log_ratio|`` first.

        Args:
            where: step, sub_step, rank, attempt.
            decode: one token id to its text.

        Returns:
            One row each.
        """
        rows = {(key, position): row for kept in self._kept.values() for _, key, position, row in kept}
        ordered = sorted(rows.values(), key=lambda row: (-abs(row["log_ratio"]), row["key"], row["position"]))
        for row in ordered:
            texts = texts_of(row["context_ids"], decode)
            place = row["position"] - row["context_start"]
            row |= {**where, "context_texts": texts, "text": None if texts is None else texts[place]}
        return pa.Table.from_pylist(ordered, schema=WORST)

    def _entry(self, block: Block, index: int, values: FloatArray) -> _Entry:
        batch, slot = block.batch, int(block.slots[index])
        row = int(block.rows[np.searchsorted(block.starts, index, side="right") - 1])
        start = int(batch.starts[row])
        end = start + int(batch.lengths[row])
        low, high = max(start, slot - self._context), min(end, slot + self._context + 1)
        key, position = batch.keys[row], slot - start
        return (-float(values[index]), key, position, _row(batch, slot, low, high, key, position))


def _row(batch: CapturedBatch, slot: int, low: int, high: int, key: str, position: int) -> dict[str, Any]:
    rollout, train = batch.rollout[slot], batch.train[slot]
    ids = batch.token_ids
    return {
        "key": key,
        "position": position,
        "token_id": None if ids is None else int(ids[slot]),
        "rollout_log_prob": float(rollout),
        "old_log_prob": float(train),
        "log_ratio": float(train - rollout),
        "prob_diff": float(abs(np.exp(train) - np.exp(rollout))),
        "context_start": position - (slot - low),
        "context_ids": None if ids is None else ids[low:high].tolist(),
        "context_rollout_log_probs": batch.rollout[low:high].tolist(),
        "context_old_log_probs": batch.train[low:high].tolist(),
        "context_mask": batch.mask[low:high].tolist(),
    }


def _largest(values: FloatArray, limit: int, least: float) -> Any:
    above = np.flatnonzero(values > least)
    if len(above) <= limit:
        return above
    return above[np.argpartition(values[above], len(above) - limit)[-limit:]]


__all__ = ["WorstTokens"]
