"""Where scored output goes: never over its input, never among rollouts."""

from __future__ import annotations

from pathlib import Path

from logparity.errors import InputError

_ROLLOUTS = "rollouts"
"""Name of the folder of a run in which every Parquet file is taken for rollouts."""


def score_target(source: Path, out: Path | None) -> Path:
    """The file to write, before any work is done.

    Args:
        source: what is scored: an existing file or folder.
        out: what the user asked for; None takes ``NAME_scored.parquet`` beside the source, and for a file in a run's
            folder ``rollouts`` the file of the same name in the folder ``scored`` beside that.

    Returns:
        The path.

    Raises:
        InputError: it would replace what is scored, or lie in a folder whose files are all taken for rollouts.
    """
    whole = source.resolve()
    among = whole if whole.is_dir() else whole.parent if whole.parent.name == _ROLLOUTS else None
    if out is None:
        if among is not None and among != whole:
            return among.with_name("scored") / f"{whole.stem}.parquet"
        return whole.with_name(f"{whole.stem}_scored.parquet")
    if out.exists() and out.samefile(source):
        raise InputError(f"--out: expected another file than the one that is scored, got {out} itself.")
    if among is not None and out.resolve().parent == among:
        raise InputError(
            f"--out: expected a file outside {among}, where every Parquet file is taken for rollouts, got {out}."
        )
    return out


__all__ = ["score_target"]
