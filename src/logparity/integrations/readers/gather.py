"""Sequences that come one at a time, gathered into one dump per step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from logparity.errors import InputError
from logparity.integrations.readers.dump import TokenDump
from logparity.integrations.readers.layouts import dump_of

StepRow = tuple[int | None, dict[str, Any], list[str]]
"""Step, columns of one sequence under our names (``key`` among them), notes."""


def by_step(rows: Iterable[StepRow], source: str) -> Iterator[TokenDump]:
    """Gather consecutive sequences of the same step.

    Args:
        rows: one sequence each.
        source: the file, for messages.

    Yields:
        One dump per run of equal steps, as list of sequences.

    Raises:
        InputError: there is none, or sequences of a step do not have the same columns.
    """
    empty = True
    for step, group in itertools.groupby(rows, key=lambda row: row[0]):
        empty = False
        parts = list(group)
        names = set(parts[0][1])
        columns: dict[str, list[Any]] = {name: [] for name in sorted(names)}
        notes: list[str] = []
        for index, (_, part, said) in enumerate(parts):
            if set(part) != names:
                raise InputError(
                    f"{source}: expected the same entries in every sequence of step {step}, sequence {index} differs "
                    f"in {', '.join(sorted(set(part) ^ names))}."
                )
            for name, value in part.items():
                columns[name].append(value)
            notes += said
        columns["keys"] = columns.pop("key", [])
        yield dump_of(columns, source=source, step=step, notes=notes)
    if empty:
        raise InputError(f"{source}: expected at least one sequence, got none.")


__all__ = ["StepRow", "by_step"]
