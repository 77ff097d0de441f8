"""Text from data, made safe for a terminal."""

from __future__ import annotations

from rich.text import Text

from logparity.report.visible_text import visible as plain


def cell(value: object) -> Text:
    """Text from data for a rich table; ``[markup]`` in it stays what it is."""
    return Text(plain(value))


__all__ = ["cell", "plain"]
