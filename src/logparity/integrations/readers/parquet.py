"""Parquet: our own rollouts, or anybody's table with one sequence a row and list columns of known names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from logparity.errors import InputError
from logparity.integrations.readers.aliases import resolve
from logparity.integrations.readers.dump import TokenDump
from logparity.integrations.readers.gather import StepRow, by_step
from logparity.integrations.readers.limits import check_file, check_size

_BATCH_ROWS = 256


def read_parquet(path: Path, max_bytes: int) -> Iterator[TokenDump]:
    """Read a table.

    Args:
        path: the file.
        max_bytes: bytes that its needed columns may take, uncompressed.

    Yields:
        One dump per run of rows with the same ``step`` (or ``global_step``).

    Raises:
        InputError: no Parquet, a side is missing, or a column holds no lists of numbers.
    """
    check_file(path, max_bytes)
    try:
        with pq.ParquetFile(path) as file:
            found, notes = resolve(file.schema_arrow.names, path.name)
            step = next((name for name in ("step", "global_step") if name in file.schema_arrow.names), None)
            wanted = [*found.values(), *([step] if step else [])]
            check_size(_uncompressed(file.metadata, wanted), path.name, max_bytes)
            yield from by_step(_rows(file, found, step, wanted, notes), path.name)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path.name}: expected a Parquet file, got an unreadable one ({error}).") from error


def _rows(file: Any, found: dict[str, str], step: str | None, wanted: list[str], notes: list[str]) -> Iterator[StepRow]:
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
        for row in batch.to_pylist():
            columns = {ours: row[name] for ours, name in found.items() if ours != "keys" and row[name] is not None}
            if "keys" in found:
                columns["key"] = str(row[found["keys"]])
            at = None if step is None else row[step]
            yield (at if type(at) is int else None), columns, notes


def _uncompressed(metadata: Any, wanted: list[str]) -> int:
    total = 0
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        for index in range(columns.num_columns):
            column = columns.column(index)
            if column.path_in_schema.split(".")[0] in wanted:
                total += int(column.total_uncompressed_size)
    return total


__all__ = ["read_parquet"]
