"""T2: a few whole samples of a unit, the same whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.store.schemas import SAMPLES
from logparity.probe.store.texts import texts_of


class SampleReservoir:
    """Keeps the ``limit`` samples whose keys hash lowest: a fair draw that uses no random numbers and merges.

    Args:
        limit: samples.
        salt: of the hash, e.g. the step, so that steps draw anew.
    """

    def __init__(self, limit: int, salt: str) -> None:
        self._limit, self._salt = limit, salt
        self._kept: list[tuple[bytes, str, dict[str, Any]]] = []

    def see(self, batch: CapturedBatch) -> None:
        """Look at a batch."""
        if not self._limit:
            return
        left_out = set(batch.duplicates)
        drawn = [(self._hash(key), row) for row, key in enumerate(batch.keys) if row not in left_out]
        for digest, row in sorted(drawn)[: self._limit]:
            if len(self._kept) < self._limit or digest < self._kept[-1][0]:
                self._kept.append((digest, batch.keys[row], _row(batch, row)))
                self._kept = sorted(self._kept, key=lambda entry: entry[:2])[: self._limit]

    def table(self, where: dict[str, int], decode: Callable[[int], str] | None) -> pa.Table:
        """The samples as a table.

        Args:
            where: step, sub_step, rank, attempt.
            decode: one token id to its text.

        Returns:
            One row each.
        """
        rows = [{**where, **row} for _, _, row in self._kept]
        for row in rows:
            row["texts"] = texts_of(row["token_ids"], decode)
        return pa.Table.from_pylist(rows, schema=SAMPLES)

    def _hash(self, key: str) -> bytes:
        return blake2b(f"{self._salt}\0{key}".encode(errors="surrogatepass"), digest_size=8).digest()


def _row(batch: CapturedBatch, row: int) -> dict[str, Any]:
    start = int(batch.starts[row])
    span = slice(start, start + int(batch.lengths[row]))
    return {
        "key": batch.keys[row],
        "mask": batch.mask[span].tolist(),
        "token_ids": None if batch.token_ids is None else batch.token_ids[span].tolist(),
        "rollout_log_probs": batch.rollout[span].tolist(),
        "old_log_probs": batch.train[span].tolist(),
        "entropy": None if batch.entropy is None else batch.entropy[span].tolist(),
    }


__all__ = ["SampleReservoir"]
