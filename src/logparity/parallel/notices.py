"""What a rank tells the others besides its numbers, in a fixed number of bytes: its error, or what it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logparity.errors import InputError, LogparityError, ShardError, SupportError

NOTICE_BYTES = 1024
_KINDS: tuple[type[LogparityError], ...] = (LogparityError, InputError, SupportError, ShardError)
_TERMS = b"\0"


def failure_notice(failure: Exception) -> bytes:
    """A rank's error; its text is cut to what fits."""
    kind = next((i for i, known in enumerate(_KINDS) if type(failure) is known), 0)
    known = isinstance(failure, LogparityError)
    text = str(failure) if known else f"{type(failure).__name__}: {failure}"
    return (bytes([kind + 1]) + text.encode()[: NOTICE_BYTES - 1]).ljust(NOTICE_BYTES, b"\0")


def terms_notice(terms: Mapping[str, str]) -> bytes:
    """What a rank was asked for, by the names of the arguments."""
    text = "\n".join(f"{name}={value}" for name, value in terms.items())
    return (_TERMS + text.encode()[: NOTICE_BYTES - 1]).ljust(NOTICE_BYTES, b"\0")


def check_notices(notices: Sequence[bytes]) -> None:
    """Raise where a rank failed, or where ranks were asked for different things; the same on every rank.

    Args:
        notices: every rank's, in rank order.

    Raises:
        LogparityError: a rank failed; of its error's kind where that is one of ours.
        InputError: an argument that every rank must be given alike is not.
    """
    for rank, notice in enumerate(notices):
        if not notice.startswith(_TERMS):
            raise _KINDS[notice[0] - 1](f"on rank {rank} of the vocabulary's group: {_text(notice)}")
    first = _terms(notices[0])
    for rank, notice in enumerate(notices):
        other = _terms(notice)
        for name in {**first, **other}:
            mine, theirs = first.get(name, "nothing"), other.get(name, "nothing")
            if mine != theirs:
                raise InputError(
                    f"{name}: expected the same on every rank of the vocabulary's group, got {mine} on rank 0 and "
                    f"{theirs} on rank {rank}. A score is made of all ranks' columns: give every rank the same "
                    "targets and options."
                )


def _text(notice: bytes) -> str:
    return notice[1:].rstrip(b"\0").decode(errors="ignore")


def _terms(notice: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in _text(notice).split("\n") if "=" in line)
