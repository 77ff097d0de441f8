"""``.pt`` dumps: miles' and slime's ``--save-debug-train-data``, or a plain mapping of tensors and lists."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from logparity.errors import InputError, MissingDependencyError
from logparity.integrations.readers.aliases import resolve
from logparity.integrations.readers.dump import TokenDump
from logparity.integrations.readers.layouts import dump_of
from logparity.integrations.readers.limits import check_file, check_size


def read_torch(path: Path, max_bytes: int) -> Iterator[TokenDump]:
    """Read one dump with ``weights_only=True``: tensors, lists, numbers, and text, nothing that runs code.

    Args:
        path: the file.
        max_bytes: bytes that it may have, also uncompressed.

    Yields:
        One dump.

    Raises:
        InputError: unreadable, or it holds other objects, or a side is missing.
        MissingDependencyError: torch is not installed.
    """
    check_file(path, max_bytes)
    content = _load(path, max_bytes)
    data = content.get("rollout_data", content) if isinstance(content, Mapping) else content
    if not isinstance(data, Mapping):
        raise InputError(f"{path.name}: expected a mapping of names to tensors, got {type(data).__name__}.")
    if "samples" in data and "log_probs" not in data:
        raise InputError(f"{path.name}: holds rollouts only. --save-debug-train-data writes the dump with both sides.")
    step = content.get("rollout_id", content.get("step"))
    found, notes = resolve([str(name) for name, value in data.items() if value is not None], path.name)
    columns = {ours: _plain(data[name]) for ours, name in found.items()}
    yield dump_of(columns, source=path.name, step=step if type(step) is int else None, notes=notes)


def _load(path: Path, max_bytes: int) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f'{path.name}: expected torch to read it, got none. Install the extra: pip install "logparity[torch]".'
        ) from error
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_size(sum(member.file_size for member in archive.infolist()), path.name, max_bytes)
        return torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path.name}: expected tensors, lists, numbers and text only, got other objects, which could run code. "
            "Save plain values."
        ) from error
    except Exception as error:  # a damaged file fails anywhere inside torch
        raise InputError(f"{path.name}: expected a torch dump, got an unreadable file ({error}).") from error


def _plain(value: Any) -> Any:
    """Tensors as arrays, at any depth of lists; numpy has no bfloat16, so floats widen first."""
    if hasattr(value, "detach"):
        value = value.detach()
        return (value.float() if value.is_floating_point() else value).numpy()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


__all__ = ["read_torch"]
