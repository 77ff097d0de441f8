"""Batches as the metrics core reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.metrics.walk import Walker
from logparity.probe.snapshot.batch import CapturedBatch

WALKER = Walker()


def ragged_rows(seed: int, count: int, longest: int, noise: float = 0.02) -> list[dict[str, Any]]:
    """Random rows with tool tokens in between, keys, and labels."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        n = int(rng.integers(1, longest + 1))
        rollout = -rng.exponential(0.7, n).astype(np.float32)
        train = -np.abs(rollout + rng.normal(0, noise, n)).astype(np.float32)
        mask = rng.random(n) < 0.8
        rows.append(
            {"key": f"k{seed}.{index}", "rollout": rollout, "train": train, "mask": mask, "env": "abc"[index % 3]}
        )
    return rows


def batch_of(rows: Sequence[dict[str, Any]], padding: int = 0) -> CapturedBatch:
    """Rows one after another, each with ``padding`` slots of NaN behind it."""
    gap = np.full(padding, np.nan, np.float32)
    return CapturedBatch(
        rollout=_joined([part for row in rows for part in (row["rollout"], gap)], np.float32),
        train=_joined([part for row in rows for part in (row["train"], gap)], np.float32),
        mask=_joined([part for row in rows for part in (row["mask"], np.zeros(padding, bool))], np.bool_),
        lengths=np.asarray([len(row["rollout"]) + padding for row in rows], np.int64),
        keys=tuple(row["key"] for row in rows),
        layout="list of rows",
        groups={"env": tuple(row["env"] for row in rows)},
    )


def usable(rows: Sequence[dict[str, Any]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What the masks leave."""
    return [(row["rollout"][row["mask"]], row["train"][row["mask"]]) for row in rows]


def measure(*batches: CapturedBatch) -> UnitMetrics:
    """All batches in one unit."""
    unit = UnitMetrics()
    for batch in batches:
        WALKER.add(unit, batch)
    return unit


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)
