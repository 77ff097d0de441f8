"""Text from data, made safe for a terminal."""

from __future__ import annotations

import unicodedata

from rich.text import Text

_LINE_BREAKS = {"\n": "⏎", "\r": "⏎", "\t": "⇥"}


def plain(value: object) -> str:
    """Strip what could drive a terminal: control, escape, bidi, and other invisible characters.

    Args:
        value: anything; its ``str`` is taken.

    Returns:
        Printable text; line breaks and tabs show as ``⏎`` and ``⇥``, every other stripped character as ``·``.
    """
    return "".join(_LINE_BREAKS.get(c, c if unicodedata.category(c)[0] != "C" else "·") for c in str(value))


def cell(value: object) -> Text:
    """Text from data for a rich table; ``[markup]`` in it stays what it is."""
    return Text(plain(value))


__all__ = ["cell", "plain"]
