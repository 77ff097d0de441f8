"""Rows of a group, few enough to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GROUP_TITLES = {
    "position": "position in the response, from",
    "distance_to_end": "distance to the end, from",
    "probability": "rollout probability, from",
    "turn": "turn",
    "version_lag": "weight versions behind",
}
_MEANS = ("log_ratio", "log_ratio_abs", "prob_diff", "k3")


def condensed(rows: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Join neighbours until at most ``limit`` rows are left; means are weighted by their tokens.

    Args:
        rows: label, count, means, in order.
        limit: at least 1.

    Returns:
        Rows; a joined one is called by its first label, as bins are by their lower edge.
    """
    size = -(-len(rows) // limit) if rows else 1
    return [_joined(rows[start : start + size]) for start in range(0, len(rows), size)]


def _joined(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count = sum(row["count"] for row in rows)
    means = {name: sum(row[name] * row["count"] for row in rows) / count for name in _MEANS}
    return {"label": str(rows[0]["label"]), "count": count, **means}


__all__ = ["GROUP_TITLES", "condensed"]
