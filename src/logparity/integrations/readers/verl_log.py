"""The log of verl's ``file`` tracker: one JSON object ``{"step", "data"}`` a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from logparity.errors import InputError
from logparity.integrations.readers.jsonl import json_lines
from logparity.integrations.readers.limits import MAX_BYTES


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """Metrics of one step.

    Args:
        step: training step.
        metrics: name to value; NaN and inf as they were logged.
        skipped: names whose value is no number.
    """

    step: int
    metrics: Mapping[str, float]
    skipped: tuple[str, ...] = ()


def read_verl_log(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Iterator[LoggedStep]:
    """Read metrics, step by step.

    Args:
        path: the ``.jsonl`` file.
        max_bytes: bytes that the file may have.

    Yields:
        Steps in the order of the file; a resumed run repeats some.

    Raises:
        InputError: a line is no such object; named by number.
    """
    path = Path(path)
    for number, row in json_lines(path, max_bytes):
        step, data = row.get("step"), row.get("data")
        if type(step) is not int or not isinstance(data, dict):
            raise InputError(
                f'{path.name}, line {number}: expected {{"step": number, "data": {{..}}}}, got {sorted(row)[:6]}.'
            )
        usable = {name: value for name, value in data.items() if type(value) in (int, float)}
        try:
            metrics = {name: float(value) for name, value in usable.items()}
        except OverflowError as error:
            raise InputError(f"{path.name}, line {number}: expected numbers that fit 64 bits, got larger.") from error
        yield LoggedStep(step, metrics, tuple(name for name in data if name not in usable))


__all__ = ["LoggedStep", "read_verl_log"]
