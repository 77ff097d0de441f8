"""Walks a batch in blocks of whole rows (or pieces of a long one) and adds them to a unit's measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from logparity.probe.metrics.bins import TURNS, PositionTable, lag_bins, probability_bins
from logparity.probe.metrics.census import LOWEST, Census, Ends, Place, classify, looks_clean, places_of
from logparity.probe.metrics.exact_sums import MAX_BLOCK, FixedTable
from logparity.probe.metrics.groups import GROUP_SUMS
from logparity.probe.metrics.tokens import WIDE, BlockValues, TokenPass
from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.snapshot.batch import CapturedBatch
from logparity.records import FloatArray, IntArray

_GROUPED = slice(WIDE.index(GROUP_SUMS[0]), WIDE.index(GROUP_SUMS[-1]) + 1)
_BY_ROW = slice(WIDE.index("rollout"), WIDE.index("log_ratio_abs") + 1)


@dataclass(frozen=True, slots=True)
class Block:
    """Usable tokens of some rows.

    Args:
        batch: that they are from.
        slots: int64 ``[n]``, where they are in the batch.
        rows: int64 ``[S]``, rows that have a token here.
        starts: int64 ``[S]``, first token of each.
        counts: int64 ``[S]``, tokens of each.
        values: what they were turned into.
    """

    batch: CapturedBatch
    slots: IntArray
    rows: IntArray
    starts: IntArray
    counts: IntArray
    values: BlockValues


class BlockObserver(Protocol):
    """Looks at blocks as they pass, e.g. to keep the worst tokens."""

    def see(self, block: Block) -> None:
        """Look at a block; its arrays are overwritten afterwards."""


class Walker:
    """Measures batches; owns the working memory (about 20 MB), so one per thread.

    Args:
        groups: also sum by position, distance to the end, probability, turn, version lag and label.
    """

    def __init__(self, *, groups: bool = True) -> None:
        self._pass = TokenPass()
        self._positions = PositionTable()
        self._groups = groups

    def add(self, unit: UnitMetrics, batch: CapturedBatch, observers: Sequence[BlockObserver] = ()) -> None:
        """Add a batch to a unit.

        Args:
            unit: is changed.
            batch: is left as it is.
            observers: see every block.
        """
        unit.layouts.add(batch.layout)
        _count_left_out(unit.census, batch)
        row_sums, row_tokens = FixedTable((_BY_ROW.stop - _BY_ROW.start, len(batch))), np.zeros(len(batch), np.int64)
        plan = _Plan.of(batch)
        starts = plan.starts
        for first, last, low, high in _pieces(batch.lengths):
            slots, rollout, train, ends = self._clean(unit.census, batch, *_take(batch, low, high))
            if ends is None:
                continue
            edges = np.searchsorted(slots, np.append(np.maximum(starts[first:last], low), high))
            counts = np.diff(edges)
            used = np.flatnonzero(counts)
            values = self._pass.add(unit.tokens, rollout, train, ends)
            block = Block(batch, slots, used + first, edges[used], counts[used], values)
            _add_rows(row_sums, values, block)
            row_tokens[block.rows] += block.counts
            if self._groups:
                self._add_groups(unit, block, plan)
            for observer in observers:
                observer.see(block)
        row_sums.carry()
        rollout_sum, log_ratio, log_ratio_abs = row_sums.values()
        unit.sequences.add(batch.keys, row_tokens, log_ratio, log_ratio_abs, rollout_sum)
        _add_entropy(unit, batch)

    def _clean(
        self, census: Census, batch: CapturedBatch, slots: IntArray, rollout: FloatArray, train: FloatArray
    ) -> tuple[IntArray, FloatArray, FloatArray, Ends | None]:
        if not len(slots):
            return slots, rollout, train, None
        ends = Ends.of(rollout, train)
        missing = None if batch.missing is None else batch.missing.take(slots)
        if not looks_clean(rollout, train, ends) or (missing is not None and missing.any()):
            rows = np.searchsorted(batch.starts, slots, side="right") - 1
            keep = np.ones(len(slots), np.bool_)
            for defect, sides in classify(rollout, train, missing).items():
                for side, hit in sides.items():
                    values = rollout if side == "rollout" else train
                    places = places_of(hit, side, values, slots - batch.starts[rows], rows, batch.keys)
                    census.record(defect.value, places, int(hit.sum()))
                    keep &= ~hit
            slots, rollout, train = slots[keep], rollout[keep], train[keep]
            if not len(slots):
                return slots, rollout, train, None
            ends = Ends.of(rollout, train)
        for side, values in (("rollout", rollout), ("train", train)):
            # Once a bit off the bfloat16 grid was seen there is nothing left to find out.
            if census.low_bits[side] != 0xFFFF:
                census.low_bits[side] |= int(np.bitwise_or.reduce(values.view(np.uint32))) & 0xFFFF
        return slots, rollout, train, ends

    def _add_groups(self, unit: UnitMetrics, block: Block, plan: _Plan) -> None:
        batch, slices, n = block.batch, block.values.slices, len(block.slots)
        row_start = np.repeat(plan.starts[block.rows], block.counts)
        longest = int(batch.lengths[block.rows].max())
        positions = block.slots - row_start
        ends = np.repeat(plan.last_slots[block.rows], block.counts) - block.slots
        codes = {
            "position": self._positions.bins(positions, longest),
            "distance_to_end": self._positions.bins(ends, longest),
            "probability": probability_bins(block.values.p_rollout.astype(np.float32)),
        }
        for name, bins in codes.items():
            counts = np.bincount(bins, minlength=len(unit.groups[name].counts))
            unit.groups[name].add(counts, slices.by_code(_GROUPED, bins, counts))
        segment_starts, rows, turns = _segments(block, plan)
        sizes = np.diff(np.append(segment_starts, n))
        sums = slices.by_segment(_GROUPED, segment_starts, sizes)
        unit.groups["turn"].add_segments(np.minimum(turns, TURNS - 1), sizes, sums)
        if batch.lag is not None:
            lag = batch.lag[rows] if len(batch.lag) == len(batch) else batch.lag[block.slots[segment_starts]]
            unit.groups["version_lag"].add_segments(lag_bins(lag), sizes, sums)
        for name, labels in batch.groups.items():
            table = unit.label_table(name)
            by_row = table.bins(tuple(labels[row] for row in block.rows.tolist()))
            table.table.add_segments(by_row[np.searchsorted(block.rows, rows)], sizes, sums)


def _pieces(lengths: IntArray) -> Iterator[tuple[int, int, int, int]]:
    """Rows ``[first, last)`` and slots ``[low, high)`` of each block; a row longer than a block comes in pieces."""
    ends = np.cumsum(lengths)
    first, low = 0, 0
    while first < len(lengths):
        last = int(np.searchsorted(ends, low + MAX_BLOCK, side="right"))
        if last > first:
            if ends[last - 1] > low:
                yield first, last, low, int(ends[last - 1])
            first, low = last, int(ends[last - 1])
            continue
        for start in range(low, int(ends[first]), MAX_BLOCK):
            yield first, first + 1, start, min(start + MAX_BLOCK, int(ends[first]))
        first, low = first + 1, int(ends[first])


def _take(batch: CapturedBatch, low: int, high: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Slots, rollout and train log-probs of the tokens in a range; views where all of it is tokens."""
    mask = batch.mask[low:high]
    if mask.all():
        return np.arange(low, high), batch.rollout[low:high], batch.train[low:high]
    slots = np.flatnonzero(mask)
    slots += low
    return slots, batch.rollout.take(slots), batch.train.take(slots)


def _add_rows(row_sums: FixedTable, values: BlockValues, block: Block) -> None:
    sums = values.slices.by_segment(_BY_ROW, block.starts, block.counts)
    row_sums.whole[:, block.rows] += sums.whole
    row_sums.middle[:, block.rows] += sums.middle
    row_sums.fine[:, block.rows] += sums.fine


def _segments(block: Block, plan: _Plan) -> tuple[IntArray, IntArray, IntArray]:
    """Runs of tokens of one row, turn, and version: starts ``[S]``, rows ``[S]``, turns ``[S]``."""
    begins = np.zeros(len(block.slots), np.bool_)
    begins[block.starts] = True
    low, high = np.searchsorted(plan.turn_slots, (block.slots[0], block.slots[-1] + 1))
    # A defect may have taken the first token of a turn out: the next usable one begins it here.
    begins[np.searchsorted(block.slots, plan.turn_slots[low:high])] = True
    lag = block.batch.lag
    if lag is not None and len(lag) != len(block.batch):
        begins[1:] |= np.diff(lag[block.slots]) != 0
    starts = np.flatnonzero(begins)
    rows = np.repeat(block.rows, block.counts)[starts]
    turns = plan.turn_numbers[np.searchsorted(plan.turn_slots, block.slots[starts], side="right") - 1]
    return starts, rows, turns


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where rows, turns, and responses begin and end."""

    starts: IntArray
    last_slots: IntArray
    turn_slots: IntArray
    turn_numbers: IntArray

    @classmethod
    def of(cls, batch: CapturedBatch) -> _Plan:
        mask, starts = batch.mask, batch.starts
        rows = np.flatnonzero(batch.lengths)
        begins, ends = mask.copy(), mask.copy()
        begins[1:] &= ~mask[:-1]
        ends[:-1] &= ~mask[1:]
        first, last = starts[rows], starts[rows] + batch.lengths[rows] - 1
        begins[first], ends[last] = mask[first], mask[last]
        turn_slots, turn_ends = np.flatnonzero(begins), np.flatnonzero(ends)
        turn_rows = np.searchsorted(starts, turn_slots, side="right") - 1
        last_slots = starts.copy()
        last_slots[turn_rows] = turn_ends  # of the turns of a row the last one stays
        numbers = np.arange(len(turn_slots)) - np.searchsorted(turn_rows, turn_rows)
        return cls(starts, last_slots, turn_slots, numbers)


def _count_left_out(census: Census, batch: CapturedBatch) -> None:
    for mismatch in batch.mismatches:
        sizes = sorted(set(mismatch.lengths.values()))
        defect = "length_plus_one" if len(sizes) == 2 and sizes[1] - sizes[0] == 1 else "length_mismatch"
        lengths = ", ".join(f"{name} {size}" for name, size in mismatch.lengths.items())
        census.record(defect, [Place(mismatch.key, -1, "row", lengths)], 1)
    if batch.duplicates:
        places = [Place(batch.keys[row], -1, "row", f"row {row}") for row in batch.duplicates]
        census.record("duplicate_key", places, len(places))


def _add_entropy(unit: UnitMetrics, batch: CapturedBatch) -> None:
    if batch.entropy is None:
        return
    values = batch.entropy[batch.mask & (batch.entropy >= 0) & (batch.entropy < -LOWEST)].astype(np.float64)
    unit.entropy.add_block(values[None])
    unit.entropy_tokens += len(values)


__all__ = ["Block", "BlockObserver", "Walker"]
