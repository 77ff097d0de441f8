"""`read_dumps`: one function for every file that holds both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from logparity.errors import InputError
from logparity.integrations.readers.arrays import read_npy_folder, read_npz
from logparity.integrations.readers.dump import TokenDump
from logparity.integrations.readers.jsonl import read_token_lines
from logparity.integrations.readers.limits import MAX_BYTES
from logparity.integrations.readers.parquet import read_parquet
from logparity.integrations.readers.torch_dump import read_torch

_READERS: Mapping[str, Callable[[Path, int], Iterator[TokenDump]]] = {
    ".npz": read_npz,
    ".jsonl": read_token_lines,
    ".parquet": read_parquet,
    ".pt": read_torch,
}


def read_dumps(source: str | Path, *, max_bytes: int = MAX_BYTES) -> Iterator[TokenDump]:
    """Read both sides of every step that a file or folder holds.

    Args:
        source: an ``.npz``, ``.jsonl`` (one sequence a line), ``.parquet`` or ``.pt`` file; a folder of
            ``.npy`` arrays, or of such files, read in the order of their names, however deep.
        max_bytes: bytes that one file may take, on disk and in memory.

    Yields:
        Dumps; their ``notes`` say what was assumed about layout and shift.

    Raises:
        InputError: nothing readable is there, or a file is damaged, hostile, or lacks a side.
    """
    source = Path(source)
    if source.is_dir():
        yield from _read_folder(source, max_bytes)
        return
    reader = _READERS.get(source.suffix)
    if reader is None:
        raise InputError(f"{source.name}: expected one of {', '.join(_READERS)} or a folder, got {source.suffix!r}.")
    yield from reader(source, max_bytes)


def _read_folder(folder: Path, max_bytes: int) -> Iterator[TokenDump]:
    files = sorted(path for path in folder.rglob("*") if path.suffix in _READERS and path.is_file())
    if not files:
        yield from read_npy_folder(folder, max_bytes)
    for path in files:
        yield from _READERS[path.suffix](path, max_bytes)


__all__ = ["read_dumps"]
