"""Putting data and code into one HTML file so that nothing in the data can become code."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from typing import Any

from markupsafe import Markup

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def json_for_script(value: Any) -> Markup:
    """Serialise to JSON that may stand inside ``<script>``: no ``<``, ``>``, ``&``, U+2028 or U+2029 is left.

    Args:
        value: what ``json.dumps`` takes; NaN is refused.

    Returns:
        JSON, marked as safe for the template.
    """
    return escape_json(json.dumps(value, allow_nan=False))


def escape_json(text: str) -> Markup:
    """Escape JSON text for ``<script>``; the value it stands for stays the same."""
    # These characters occur in JSON only inside strings, where the escaped form means the same.
    return Markup("".join(_ESCAPES.get(c, c) for c in text))


def packed(code: str) -> str:
    """Code as gzip in base64, a third of its size; the page unpacks it."""
    return base64.b64encode(gzip.compress(code.encode(), compresslevel=9, mtime=0)).decode()


def csp_hash(code: str) -> str:
    """The Content-Security-Policy source that allows exactly this inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


__all__ = ["csp_hash", "escape_json", "json_for_script", "packed"]
