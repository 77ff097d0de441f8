"""JSON lines with one sequence each: prime-rl's token exports, or anybody's with known names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from logparity.errors import InputError
from logparity.integrations.readers.aliases import resolve
from logparity.integrations.readers.dump import TokenDump
from logparity.integrations.readers.gather import by_step
from logparity.integrations.readers.limits import MAX_LINE_BYTES, check_file

_IDENTITY = ("run_id", "rank", "micro_step", "micro_sequence_idx")


def json_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Objects of a file, one a line, with line numbers.

    Args:
        path: the file.
        max_bytes: bytes that the file may have.

    Yields:
        Line number from 1, and the object.

    Raises:
        InputError: a line is too long, no JSON, nested too deeply, or no object; named by number.
    """
    check_file(path, max_bytes)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise InputError(f"{path.name}, line {number}: expected at most {MAX_LINE_BYTES:,} bytes, got more.")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path.name}, line {number}: expected a JSON object, got {error}.") from error
            if not isinstance(row, dict):
                raise InputError(f"{path.name}, line {number}: expected a JSON object, got {type(row).__name__}.")
            yield number, row


def read_token_lines(path: Path, max_bytes: int) -> Iterator[TokenDump]:
    """Read one sequence a line.

    Args:
        path: the ``.jsonl`` file.
        max_bytes: bytes that the file may have.

    Yields:
        One dump per run of lines with the same ``step``.

    Raises:
        InputError: a line lacks a side or holds no numbers.
    """
    yield from by_step(_rows(path, max_bytes), path.name)


def _rows(path: Path, max_bytes: int) -> Iterator[tuple[int | None, dict[str, Any], list[str]]]:
    for number, row in json_lines(path, max_bytes):
        if set(row) == {"step", "data"}:
            raise InputError(
                f"{path.name}: a log of verl's file logger holds metrics, not tokens: read_verl_log reads it."
            )
        found, notes = resolve(row, f"{path.name}, line {number}")
        columns = {ours: row[name] for ours, name in found.items() if ours != "keys"}
        key = row.get("key")
        if key is None and all(name in row for name in _IDENTITY[1:]):
            key = "_".join(str(row[name]) for name in _IDENTITY if row.get(name) is not None)
        if key is not None:
            columns["key"] = str(key)
        step = row.get("step")
        yield (step if type(step) is int else None), columns, notes


__all__ = ["json_lines", "read_token_lines"]
