"""Numbers from data as short text."""

from __future__ import annotations

import math
from typing import Any

from logparity.report.visible_text import visible


def number(value: Any) -> str:
    """Four significant digits; whole numbers in full; "not compared" for None; other values as visible text."""
    if value is None:
        return "not compared"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return visible(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}" if math.isfinite(value) else str(value)


__all__ = ["number"]
