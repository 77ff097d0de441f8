"""Texts of token ids, as far as the tokenizer goes along."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def texts_of(tokens: Sequence[int] | None, decode: Callable[[int], str] | None) -> list[str] | None:
    """Decode ids one by one.

    Args:
        tokens: ids; None where there are none.
        decode: one id to its text; None without a tokenizer.

    Returns:
        One text an id; None where there is nothing to decode, or the tokenizer refuses an id.
    """
    if tokens is None or decode is None:
        return None
    try:
        return [str(decode(token)) for token in tokens]
    except Exception:  # a tokenizer that does not know an id costs the texts only
        return None


__all__ = ["texts_of"]
