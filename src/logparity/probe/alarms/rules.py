"""Rules that turn a metric into an alarm: a limit, a change against the run's own start, a trend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from logparity.errors import InputError


class RuleKind(str, Enum):
    """How a rule looks at its metric."""

    ABOVE = "above"
    """Fires where the value is greater than the limit."""
    BELOW = "below"
    """Fires where the value is less than the limit."""
    OVER_BASELINE = "over_baseline"
    """Fires where the value is greater than ``limit`` times the median of the run's first ``window`` values."""
    UNDER_BASELINE = "under_baseline"
    """Fires where the value is less than ``limit`` times the median of the run's first ``window`` values."""
    RISING = "rising"
    """Fires where the last ``window`` values rise steadily and by more than the factor ``limit`` in all."""


class Severity(str, Enum):
    """What an alarm means for the person who reads it."""

    NOTICE = "notice"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class AlarmRule:
    """One condition on one metric.

    Args:
        name: of the alarm, unique among the rules of a run; letters, digits, ``_``, ``-``, ``.``.
        metric: key of the metric, e.g. ``mismatch/prob_diff_mean``.
        kind: how it is looked at.
        limit: a value (above, below) or a factor (the others).
        window: units that the baseline or the trend is taken over; not used by ``above`` and ``below``.
        severity: what it means.
        source: who says so, for the evidence.

    Raises:
        InputError: the name cannot be a file name, or the window is too short.
    """

    name: str
    metric: str
    kind: RuleKind
    limit: float
    window: int = 8
    severity: Severity = Severity.PROBLEM
    source: str = ""

    def __post_init__(self) -> None:
        if not self.name or not all(c.isascii() and (c.isalnum() or c in "_-.") for c in self.name):
            raise InputError(f"alarm name: expected ASCII letters, digits, '_', '-', '.', got {self.name!r}.")
        if self.window < 3:
            raise InputError(f"window of alarm {self.name!r}: expected at least 3 units, got {self.window}.")


__all__ = ["AlarmRule", "RuleKind", "Severity"]
