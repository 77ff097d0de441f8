"""Everything measured of one unit: a step and sub-step, or a part of it. Parts merge into the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logparity.errors import InputError
from logparity.probe.metrics.bins import FIXED_GROUPS, labels_of
from logparity.probe.metrics.census import Census
from logparity.probe.metrics.exact_sums import ExactSums
from logparity.probe.metrics.groups import GroupTable, LabelledTable, table_from_json, table_to_json
from logparity.probe.metrics.sequences import SequenceSums
from logparity.probe.metrics.tokens import TokenSums

_LARGEST_LIMIT = 1 << 16
"""Labels per group key that a stored unit may ask memory for."""


class UnitMetrics:
    """Mergeable measurements.

    Args:
        group_limit: labels told apart per group key.

    Attributes:
        tokens: sums, counts, extremes, histograms over tokens.
        sequences: sums over sequences.
        census: defects.
        groups: fixed group to table.
        labelled: group key to table.
        entropy: exact sum and number of finite entropies.
        layouts: how the calls gave their tokens.
    """

    __slots__ = (
        "_group_limit",
        "census",
        "entropy",
        "entropy_tokens",
        "groups",
        "labelled",
        "layouts",
        "sequences",
        "tokens",
    )

    def __init__(self, group_limit: int = 64) -> None:
        self._group_limit = group_limit
        self.tokens = TokenSums()
        self.sequences = SequenceSums()
        self.census = Census()
        self.groups = {name: GroupTable(len(labels_of(name))) for name in FIXED_GROUPS}
        self.labelled: dict[str, LabelledTable] = {}
        self.entropy, self.entropy_tokens = ExactSums([0]), 0
        self.layouts: set[str] = set()

    def label_table(self, group: str) -> LabelledTable:
        """The table of a group key, made where there is none."""
        return self.labelled.setdefault(group, LabelledTable(self._group_limit))

    def merge(self, other: UnitMetrics) -> None:
        """Add another part; the result does not depend on how the whole was cut."""
        self.tokens.merge(other.tokens)
        self.sequences.merge(other.sequences)
        self.census.merge(other.census)
        for name, table in self.groups.items():
            table.add(other.groups[name].counts, other.groups[name].sums)
        for name, labelled in other.labelled.items():
            self.label_table(name).merge(labelled)
        self.entropy.add(other.entropy.units)
        self.entropy_tokens += other.entropy_tokens
        self.layouts |= other.layouts

    def group_rows(self) -> dict[str, list[dict[str, Any]]]:
        """Group to its rows: label, count, means."""
        fixed = {name: table.rows(labels_of(name)) for name, table in self.groups.items()}
        return {name: rows for name, rows in {**fixed, **self._labelled_rows()}.items() if rows}

    def _labelled_rows(self) -> dict[str, list[dict[str, Any]]]:
        return {name: table.rows() for name, table in sorted(self.labelled.items())}

    def to_json(self) -> dict[str, Any]:
        """As plain data, from which `from_json` makes the same measurements."""
        return {
            "tokens": self.tokens.to_json(),
            "sequences": self.sequences.to_json(),
            "census": self.census.to_json(),
            "groups": {name: table_to_json(table) for name, table in self.groups.items()},
            "labelled": {
                name: {"labels": list(table.labels), "table": table_to_json(table.table)}
                for name, table in self.labelled.items()
            },
            "entropy": [format(self.entropy.units[0], "x"), self.entropy_tokens],
            "layouts": sorted(self.layouts),
            "group_limit": self._group_limit,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UnitMetrics:
        """The measurements whose `to_json` this is."""
        limit = int(data["group_limit"])
        if not 1 <= limit <= _LARGEST_LIMIT:
            raise InputError(f"group_limit: expected 1 to {_LARGEST_LIMIT}, got {limit}.")
        unit = cls(limit)
        unit.tokens = TokenSums.from_json(data["tokens"])
        unit.sequences = SequenceSums.from_json(data["sequences"])
        unit.census = Census.from_json(data["census"])
        for name in FIXED_GROUPS:
            unit.groups[name] = table_from_json(data["groups"][name], len(labels_of(name)))
        for name, stored in data["labelled"].items():
            table = unit.label_table(name)
            table.restore(stored["labels"], stored["table"])
        unit.entropy, unit.entropy_tokens = ExactSums([int(data["entropy"][0], 16)]), int(data["entropy"][1])
        unit.layouts = set(data["layouts"])
        return unit


__all__ = ["UnitMetrics"]
