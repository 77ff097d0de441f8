"""``.npz`` archives, and folders of ``.npy`` arrays."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.integrations.readers.aliases import ALIASES, resolve
from logparity.integrations.readers.dump import TokenDump
from logparity.integrations.readers.layouts import dump_of
from logparity.integrations.readers.limits import check_file, check_size

_STEP_NAME = re.compile(r"(.+?)(?:_step_(\d{1,18}))?\.npy")


def read_npz(path: Path, max_bytes: int) -> Iterator[TokenDump]:
    """Read one archive.

    Args:
        path: the ``.npz`` file.
        max_bytes: bytes that may be allocated.

    Yields:
        One dump.

    Raises:
        InputError: no archive, an array of objects, a header that promises more than the file holds, or no such names.
    """
    check_file(path, max_bytes)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
            found, notes = resolve(members, path.name)
            wanted = {ours: members[name] for ours, name in found.items()}
            step = members.get("step")
            budget = sum(_declared(archive, name) for name in [*wanted.values(), *([step] if step else [])])
            check_size(budget, path.name, max_bytes)
            columns = {ours: _member(archive, name) for ours, name in wanted.items()}
            at = None if step is None else _member(archive, step)
    except InputError:
        raise
    except Exception as error:  # numpy takes headers for Python text: what is none fails anywhere in Python's parser
        raise InputError(f"{path.name}: expected an .npz of plain arrays, got an unreadable file ({error}).") from error
    yield dump_of(columns, source=path.name, step=_scalar(at), notes=notes)


def read_npy_folder(folder: Path, max_bytes: int) -> Iterator[TokenDump]:
    """Read a folder of arrays: ``NAME.npy`` or ``NAME_step_{n}.npy``, under any of the known names.

    Args:
        folder: where they are.
        max_bytes: bytes that one step may hold.

    Yields:
        One dump a step, in order.

    Raises:
        InputError: there are none, or one is unreadable.
    """
    known = {alias for aliases in ALIASES.values() for alias in aliases}
    steps: dict[int, dict[str, Path]] = {}
    for path in sorted(folder.glob("*.npy")):
        match = _STEP_NAME.fullmatch(path.name)
        if match and match[1] in known:
            steps.setdefault(-1 if match[2] is None else int(match[2]), {})[match[1]] = path
    if not steps:
        raise InputError(
            f"{folder}: expected arrays such as rollout_log_probs.npy and old_log_probs.npy, got none. Folders of "
            "prob_diff_step_*.npy hold differences only: logparity analyze reads them."
        )
    for step, files in sorted(steps.items()):
        label = folder.name if step < 0 else f"{folder.name}, step {step}"
        found, notes = resolve(files, label)
        check_size(sum(files[name].stat().st_size for name in found.values()), label, max_bytes)
        columns = {ours: _load(files[name]) for ours, name in found.items()}
        yield dump_of(columns, source=label, step=None if step < 0 else step, notes=notes)


def _load(path: Path) -> NDArray[Any]:
    try:  # mapped: a header that promises more than the file holds is refused, not allocated
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # as above
        raise InputError(f"{path.name}: expected a plain .npy array, got an unreadable file ({error}).") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path.name}: expected a plain .npy array, got an archive.")
    return array


def _declared(archive: zipfile.ZipFile, name: str) -> int:
    """Bytes of an array as its header has it; refused where the member is shorter."""
    info = archive.getinfo(name)
    with archive.open(info) as file:
        shape, _, dtype = _header(file)
        if dtype.hasobject:
            raise InputError(f"{name}: expected an array of numbers, got objects: pickles are refused.")
        count = 1
        for length in shape:
            count *= length
        promised = count * dtype.itemsize
        if promised > info.file_size:
            raise InputError(f"{name}: its header promises {promised:,} bytes, the file has {info.file_size:,}.")
    return info.file_size


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    if version == (2, 0):
        return npy.read_array_header_2_0(file)
    raise InputError(f"expected .npy version 1.0 or 2.0, got {version[0]}.{version[1]}.")


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def _scalar(array: NDArray[Any] | None) -> int | None:
    return int(array) if array is not None and array.size == 1 and array.dtype.kind in "iu" else None


__all__ = ["read_npy_folder", "read_npz"]
