"""Sums by group: what the tokens of one bin or label look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from logparity.probe.metrics.exact_sums import FixedTable
from logparity.records import IntArray

GROUP_SUMS: Final = ("log_ratio", "log_ratio_abs", "prob_diff", "k3")
"""What is summed per group, in the order of a block's rows."""

OTHER: Final = "other"
"""Label of all labels beyond the limit."""


class GroupTable:
    """Counts and exact sums of `GROUP_SUMS` per bin.

    Args:
        size: number of bins.
    """

    __slots__ = ("counts", "sums")

    def __init__(self, size: int) -> None:
        self.counts = np.zeros(size, np.int64)
        self.sums = FixedTable((len(GROUP_SUMS), size))

    def add(self, counts: IntArray, sums: FixedTable) -> None:
        """Add the counts and sums of a block, one per bin."""
        self.counts += counts
        self.sums.add(sums)

    def add_segments(self, bins: IntArray, counts: IntArray, sums: FixedTable) -> None:
        """Add segments, each of which lies in one bin.

        Args:
            bins: int64 ``[S]``.
            counts: int64 ``[S]``.
            sums: ``[4, S]``.
        """
        np.add.at(self.counts, bins, counts)
        for mine, theirs in (
            (self.sums.whole, sums.whole),
            (self.sums.middle, sums.middle),
            (self.sums.fine, sums.fine),
        ):
            for row, values in zip(mine, theirs, strict=True):
                np.add.at(row, bins, values)
        self.sums.carry()

    def rows(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """One mapping per bin that holds tokens: label, count, and the mean of each of `GROUP_SUMS`."""
        values = self.sums.values()
        used = np.flatnonzero(self.counts).tolist()
        return [
            {
                "label": labels[k],
                "count": int(self.counts[k]),
                **{name: float(values[i, k] / self.counts[k]) for i, name in enumerate(GROUP_SUMS)},
            }
            for k in used
        ]


class LabelledTable:
    """A `GroupTable` whose bins are found by label, up to a limit.

    Args:
        limit: labels told apart; the tokens of further ones are counted under `OTHER`.
    """

    __slots__ = ("_index", "_limit", "table")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._index: dict[str, int] = {OTHER: 0}
        self.table = GroupTable(limit + 1)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels in the order of their bins."""
        return tuple(self._index)

    def bins(self, labels: Sequence[str]) -> IntArray:
        """Bins of labels, int64 ``[len(labels)]``; unknown ones get a bin while there is room."""
        for label in sorted(set(labels) - self._index.keys()):
            if len(self._index) <= self._limit:
                self._index[label] = len(self._index)
        return np.asarray([self._index.get(label, 0) for label in labels], np.int64)

    def rows(self) -> list[dict[str, Any]]:
        """As `GroupTable.rows`, by label."""
        return sorted(self.table.rows(self.labels + ("",) * self._limit), key=lambda row: str(row["label"]))

    def restore(self, labels: Sequence[str], data: Mapping[str, Any]) -> None:
        """Take labels and table as they were stored."""
        self._index = {label: k for k, label in enumerate(labels)}
        self.table = table_from_json(data, self._limit + 1)

    def merge(self, other: LabelledTable) -> None:
        """Add a table with other labels."""
        bins = self.bins(other.labels)
        n = len(bins)
        part = FixedTable((len(GROUP_SUMS), n))
        part.whole, part.middle, part.fine = (
            x[:, :n] for x in (other.table.sums.whole, other.table.sums.middle, other.table.sums.fine)
        )
        self.table.add_segments(bins, other.table.counts[:n], part)


def table_to_json(table: GroupTable) -> dict[str, Any]:
    """The bins that are not empty, sums in multiples of 2^-79 as text: they are larger than JSON's numbers."""
    used = np.flatnonzero(table.counts)
    table.sums.carry()
    part = FixedTable((len(GROUP_SUMS), len(used)))
    part.whole, part.middle, part.fine = (x[:, used] for x in (table.sums.whole, table.sums.middle, table.sums.fine))
    return {
        "bins": used.tolist(),
        "counts": table.counts[used].tolist(),
        "sums": [format(unit, "x") for unit in part.units()],
    }


def table_from_json(data: Mapping[str, Any], size: int) -> GroupTable:
    """The table whose `table_to_json` this is."""
    table = GroupTable(size)
    bins = np.asarray(data["bins"], np.int64)
    sums = FixedTable.from_units([int(unit, 16) for unit in data["sums"]], (len(GROUP_SUMS), len(bins)))
    table.add_segments(bins, np.asarray(data["counts"], np.int64), sums)
    return table


__all__ = ["GROUP_SUMS", "OTHER", "GroupTable", "LabelledTable", "table_from_json", "table_to_json"]
