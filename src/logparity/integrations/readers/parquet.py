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
        max_bytes: bytes that it may take, uncompressed.

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
            check_size(_uncompressed(file.metadata), path.name, max_bytes)
            yield from by_step(_rows(file, found, step, wanted, notes), path.name)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:  # names may be no text, too
        raise InputError(f"{path.name}: expected a Parquet file, got an unreadable one ({error}).") from error


def _rows(file: Any, found: dict[str, str], step: str | None, wanted: list[str], notes: list[str]) -> Iterator[StepRow]:
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
        for row in batch.to_pylist():
            columns = {ours: row[name] for ours, name in found.items() if ours != "keys" and row[name] is not None}
            if "keys" in found:
                columns["key"] = str(row[found["keys"]])
            at = None if step is None else row[step]
            yield (at if type(at) is int else None), columns, notes


def _uncompressed(metadata: Any) -> int:
    """Bytes of all columns. Those of single columns are not asked for: damaged statistics end the process there."""
    return sum(int(metadata.row_group(index).total_byte_size) for index in range(metadata.num_row_groups))


__all__ = ["read_parquet"]
