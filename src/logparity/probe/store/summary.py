"""T0: one unit as one row that any Parquet reader understands, and back."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logparity.errors import InputError
from logparity.probe.metrics.catalog import metrics_of
from logparity.probe.metrics.histogram import SizeHistogram, lower_edges
from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.store.schemas import SUMMARY

_LARGEST_STATE: Final = 64 << 20
"""Bytes that a stored state may unpack to."""


def summary_table(
    unit: UnitMetrics, where: Mapping[str, int], run_id: str, metrics: Mapping[str, float], alarms: Sequence[str]
) -> pa.Table:
    """A unit as a table of one row.

    Args:
        unit: its measurements.
        where: step, sub_step, rank, attempt.
        run_id: of the run.
        metrics: finite values by key.
        alarms: names of the rules that it met.

    Returns:
        One row.
    """
    groups = [
        {"group": group, **row, "label": str(row["label"])} for group, rows in unit.group_rows().items() for row in rows
    ]
    row = {
        **where,
        "run_id": run_id,
        "time": time.time(),
        "metrics": list(metrics.items()),
        "groups": groups,
        "census": _census(unit),
        "prob_diff_histogram": _bins(unit.tokens.prob_diff),
        "log_ratio_histogram": _bins(unit.tokens.log_ratio),
        "alarms": list(alarms),
        "state": zlib.compress(json.dumps(unit.to_json(), allow_nan=False).encode()),
    }
    return pa.Table.from_pylist([row], schema=SUMMARY)


def read_state(state: bytes) -> UnitMetrics:
    """The measurements out of the column ``state``.

    Args:
        state: as it was stored.

    Returns:
        The unit.

    Raises:
        InputError: it is damaged, or unpacks to more than a unit can be.
    """
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(state, _LARGEST_STATE)
        if unpacker.unconsumed_tail:
            raise InputError(f"state: expected at most {_LARGEST_STATE} bytes, got more.")
        unit = UnitMetrics.from_json(json.loads(text))
        # What is damaged shows when it is used: used here, it costs this unit; later, the whole run.
        trial = UnitMetrics()
        trial.merge(unit)
        metrics_of(trial), trial.group_rows()
        return unit
    except (zlib.error, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError) as error:
        raise InputError(f"state: expected the measurements of a unit, got something else ({error}).") from error
    except ValueError as error:
        raise InputError(f"state: expected the measurements of a unit, got something else ({error}).") from error


def _census(unit: UnitMetrics) -> list[dict[str, Any]]:
    census = unit.census
    return [
        {
            "defect": defect,
            "count": count,
            "key": place.key,
            "position": place.position,
            "side": place.side,
            "value": place.value,
        }
        for defect, count in census.counts.items()
        for place in census.places[defect]
    ]


def _bins(histogram: SizeHistogram) -> list[dict[str, float]]:
    edges, used = lower_edges(), np.flatnonzero(histogram.counts)
    return [
        {"low": float(edges[k]), "high": float(edges[k + 1]), "count": int(histogram.counts[k])} for k in used.tolist()
    ]


__all__ = ["read_state", "summary_table"]
