"""Offline analysis of a folder of ``.npy`` pairs, which may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.probe.moments import Moments
from logparity.probe.npy_files import PairName, list_pairs, open_pair, read_keys
from logparity.probe.quantiles import Blocks, FloatHistogram, exact_quantiles
from logparity.records import BoolArray, FloatArray, IntArray

PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99, 99.9)
_BLOCK_SLOTS = 4 << 20
"""Slots of a file that are looked at together: 20 MB."""
_LARGEST_DIFFERENCE = 1.001
"""Probabilities may exceed 1 by the rounding of a log-prob."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the valid tokens of a step, or of all steps, look like.

    Args:
        moments: count, mean, std and extremes of ``|dp|`` over valid tokens with a finite value.
        percentiles: percent to ``|dp|``, as ``numpy.percentile`` gives it; empty without tokens.
        not_finite: valid tokens left out because their value is NaN or inf.
    """

    moments: Moments
    percentiles: Mapping[float, float]
    not_finite: int


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """One pair of files.

    Args:
        name: step, sub-step, attempt.
        shape: ``(B, R)``.
        summary: over the pair.
        sample_count: int64 ``[B]``, valid tokens of each row.
        sample_mean: float64 ``[B]``, mean ``|dp|`` of each row; NaN where a row has none.
        sample_max: float32 ``[B]``, its largest ``|dp|``; NaN where a row has none.
        keys: ``B`` sample keys; None where the pair has none.
        leaked: slots outside the mask that are not 0.
    """

    name: PairName
    shape: tuple[int, int]
    summary: Summary
    sample_count: IntArray
    sample_mean: NDArray[np.float64]
    sample_max: FloatArray
    keys: tuple[str, ...] | None
    leaked: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """A folder of pairs: all tokens, by step, by position, by sample.

    Args:
        folder: where the pairs are.
        summary: over all steps.
        steps: one entry per step and sub-step, the last attempt of each.
        position_count: int64 ``[R]``, valid tokens at each response position, over all steps.
        position_mean: float64 ``[R]``, mean ``|dp|`` over exactly those; NaN where there are none.
        histogram: counts of ``|dp|``.
        superseded: earlier attempts, left out.
    """

    folder: Path
    summary: Summary
    steps: tuple[StepAnalysis, ...]
    position_count: IntArray
    position_mean: NDArray[np.float64]
    histogram: FloatHistogram
    superseded: tuple[PairName, ...]

    @property
    def leaked(self) -> int:
        """Slots outside a mask that are not 0, over all steps."""
        return sum(step.leaked for step in self.steps)


def analyze_folder(folder: str | Path) -> Analysis:
    """Analyse ``|dp|`` of every pair in a folder; of a step that was run again, the last attempt counts.

    Args:
        folder: holds ``prob_diff*.npy`` and ``prob_mask*.npy``.

    Returns:
        Statistics over valid tokens with a finite value; those without are counted.

    Raises:
        InputError: the folder is missing or empty, a mask is missing, two shapes differ, a file is no plain array, a
            difference is outside [0, 1], or a mask holds more than 0 and 1.

    Memory: a block of 20 MB and 16 bytes per sample; the files are mapped and read three times.
    """
    folder = Path(folder)
    latest: dict[tuple[int, int], PairName] = {}
    names = list_pairs(folder)
    for name in names:
        latest[name.step, name.sub_step] = name
    chosen = tuple(latest.values())
    for name in chosen:  # every file is looked at before any is read: a mistake shows at once
        open_pair(folder, name)
    width = max(open_pair(folder, name)[0].shape[1] for name in chosen)
    positions = _Positions(np.zeros(width, np.int64), np.zeros(width, np.float64))
    parts = [_analyze_step(folder, name, positions) for name in chosen]
    histogram = sum((part[1] for part in parts), FloatHistogram())
    steps = tuple(part[0] for part in parts)

    def blocks() -> Iterator[FloatArray]:
        for name in chosen:
            yield from _valid_values(folder, name)

    return Analysis(
        folder=folder,
        summary=Summary(
            moments=sum((step.summary.moments for step in steps), Moments()),
            percentiles=_percentiles(histogram, blocks),
            not_finite=sum(step.summary.not_finite for step in steps),
        ),
        steps=steps,
        position_count=positions.count,
        position_mean=_ratio(positions.total, positions.count),
        histogram=histogram,
        superseded=tuple(name for name in names if name not in chosen),
    )


@dataclass(frozen=True, slots=True)
class _Positions:
    count: IntArray
    total: NDArray[np.float64]

    def add(self, values: FloatArray, use: BoolArray) -> None:
        self.count[: use.shape[1]] += use.sum(axis=0)
        self.total[: use.shape[1]] += values.sum(axis=0, dtype=np.float64)


def _analyze_step(folder: Path, name: PairName, positions: _Positions) -> tuple[StepAnalysis, FloatHistogram]:
    shape = open_pair(folder, name)[0].shape
    count, total, largest = np.zeros(shape[0], np.int64), np.zeros(shape[0]), np.full(shape[0], np.nan, np.float32)
    moments, histogram, not_finite, leaked = Moments(), FloatHistogram(), 0, 0
    for rows, diff, mask in _blocks(folder, name):
        use = mask & np.isfinite(diff)
        not_finite += int(mask.sum()) - int(use.sum())
        leaked += int(((diff != 0) & ~mask).sum())
        values = np.where(use, diff, np.float32(0))
        active = diff[use]
        if active.size and active.min() < 0:
            raise InputError(
                f"{name.diff_path(folder).name}: expected |dp| >= 0, got {active.min()}. Save the absolute value."
            )
        if active.size and active.max() > _LARGEST_DIFFERENCE:
            raise InputError(
                f"{name.diff_path(folder).name}: expected |dp| <= 1, a difference of two probabilities, got "
                f"{active.max()}. These look like differences of log-probs: take exp() of both before subtracting."
            )
        count[rows], total[rows] = use.sum(axis=1), values.sum(axis=1, dtype=np.float64)
        largest[rows] = np.where(use.any(axis=1), values.max(axis=1, initial=0), np.float32(np.nan))
        positions.add(values, use)
        moments, histogram = moments + Moments.of(active), histogram + FloatHistogram.of(active)
    percentiles = _percentiles(histogram, lambda: _valid_values(folder, name))
    return StepAnalysis(
        name=name,
        shape=(shape[0], shape[1]),
        summary=Summary(moments, percentiles, not_finite),
        sample_count=count,
        sample_mean=_ratio(total, count),
        sample_max=largest,
        keys=read_keys(folder, name, shape[0]),
        leaked=leaked,
    ), histogram


def _percentiles(histogram: FloatHistogram, blocks: Blocks) -> dict[float, float]:
    if not histogram.total:
        return {}
    return dict(zip(PERCENTILES, exact_quantiles(histogram, blocks, [p / 100 for p in PERCENTILES]), strict=True))


def _blocks(folder: Path, name: PairName) -> Iterator[tuple[slice, FloatArray, BoolArray]]:
    diff, mask = open_pair(folder, name)
    height = max(1, _BLOCK_SLOTS // max(1, diff.shape[1]))
    for start in range(0, diff.shape[0], height):
        rows = slice(start, start + height)
        yield rows, np.asarray(diff[rows], np.float32), _as_bool(np.asarray(mask[rows]), name.mask_path(folder))


def _as_bool(mask: NDArray[Any], path: Path) -> BoolArray:
    wrong = mask[:0] if mask.dtype == np.bool_ else mask[(mask != 0) & (mask != 1)]
    if wrong.size:
        raise InputError(f"{path.name}: expected only 0 and 1, got {wrong[0]}; {wrong.size:,} such in a block of rows.")
    valid: BoolArray = mask != 0
    return valid


def _valid_values(folder: Path, name: PairName) -> Iterator[FloatArray]:
    for _, diff, mask in _blocks(folder, name):
        yield diff[mask & np.isfinite(diff)]


def _ratio(total: NDArray[np.float64], count: IntArray) -> NDArray[np.float64]:
    mean = np.full(len(count), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


__all__ = ["PERCENTILES", "Analysis", "StepAnalysis", "Summary", "analyze_folder"]
