"""A folder's manifest: the size and SHA-256 of every file, so that a damaged copy is noticed before it is used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

NAME = "MANIFEST.json"
_SMALL = 16 * 1024 * 1024


def write_manifest(folder: Path) -> None:
    """Record size and SHA-256 of every file in a folder into its ``MANIFEST.json``."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != NAME)
    entries = {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in files}
    (folder / NAME).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path, *, full: bool = False) -> str | None:
    """Say what differs between a folder and its manifest.

    Args:
        folder: a folder that `write_manifest` has seen.
        full: hash every file; otherwise files above 16 MiB are compared by size only, which takes milliseconds.

    Returns:
        One line about the first difference, or None where there is none.
    """
    try:
        entries = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{NAME} cannot be read: {error}"
    for name, entry in entries.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        size = file.stat().st_size
        if size != entry["bytes"]:
            return f"{name} has {size} bytes, expected {entry['bytes']}"
        if (full or size <= _SMALL) and sha256(file) != entry["sha256"]:
            return f"{name} differs from its checksum"
    return None


def sha256(file: Path) -> str:
    """SHA-256 of a file as lower-case hex."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


__all__ = ["damage", "sha256", "write_manifest"]
