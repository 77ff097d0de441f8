"""Sizes are checked before anything is allocated."""

from __future__ import annotations

from pathlib import Path

from logparity.errors import InputError

MAX_BYTES = 4 << 30
"""A step of 2 x 4 bytes for 5 * 10^8 token slots; more is a job for the store."""

MAX_LINE_BYTES = 256 << 20
"""One JSON line: a sequence of some million tokens."""


def check_size(found: int, what: str, limit: int = MAX_BYTES) -> None:
    """Refuse what is larger than the limit, before it is read.

    Args:
        found: bytes that reading would need.
        what: the file or entry, for the message.
        limit: bytes allowed.

    Raises:
        InputError: it is larger.
    """
    if found > limit:
        raise InputError(f"{what}: expected at most {limit:,} bytes, got {found:,}. Split it, or raise max_bytes.")


def check_file(path: Path, limit: int = MAX_BYTES) -> None:
    """Refuse a path that is no regular file, or too large a one.

    Args:
        path: the file.
        limit: bytes allowed.

    Raises:
        InputError: it is missing, no file, or larger.
    """
    if not path.is_file():
        raise InputError(f"{path}: expected a file, got {'no regular file' if path.exists() else 'nothing there'}.")
    check_size(path.stat().st_size, path.name, limit)


__all__ = ["MAX_BYTES", "MAX_LINE_BYTES", "check_file", "check_size"]
