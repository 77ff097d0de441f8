"""Text from data with every invisible character made visible."""

from __future__ import annotations

import unicodedata

_BREAKS = {"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"}


def visible(value: object) -> str:
    """Replace what could drive a terminal or reorder a page: control, escape, bidi, and other format characters.

    Args:
        value: anything; its ``str`` is taken.

    Returns:
        Printable text; line breaks and tabs show as ``↵`` and ``⇥``, every other replaced character as ``·``.
    """
    return "".join(_BREAKS.get(c, "·" if unicodedata.category(c)[0] == "C" else c) for c in str(value))


__all__ = ["visible"]
