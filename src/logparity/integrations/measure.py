"""Dumps of any tool, measured as the probe would have measured them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from logparity.integrations.readers import TokenDump, read_dumps
from logparity.probe.measured import MeasuredRun, measure_batches
from logparity.probe.snapshot.batch import CapturedBatch


def measure_dumps(source: Path) -> MeasuredRun:
    """Read dumps and measure them.

    Args:
        source: what `read_dumps` takes.

    Returns:
        The measurements by step; the notes say what was assumed.

    Raises:
        InputError: nothing readable is there, or a file is damaged.
    """
    notes: list[str] = []

    def batches() -> Iterator[tuple[int | None, CapturedBatch]]:
        for dump in read_dumps(source):
            notes.extend(note for note in dump.notes if note not in notes)
            yield dump.step, _batch(dump)

    return measure_batches(source.resolve().name, batches(), notes)


def _batch(dump: TokenDump) -> CapturedBatch:
    def joined(rows: tuple[np.ndarray, ...], dtype: type) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *rows]).astype(dtype, copy=False)

    return CapturedBatch(
        rollout=joined(dump.rollout_log_probs, np.float32),
        train=joined(dump.old_log_probs, np.float32),
        mask=joined(dump.response_mask, np.bool_),
        lengths=np.asarray([len(row) for row in dump.response_mask], np.int64),
        keys=dump.keys or tuple(f"row{row}" for row in range(len(dump))),
        layout="file",
        token_ids=None if dump.token_ids is None else joined(dump.token_ids, np.int32),
        keyed=dump.keys is not None,
    )


__all__ = ["measure_dumps"]
