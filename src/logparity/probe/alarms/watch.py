"""Looks at the metrics of every unit and says which alarms begin."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from logparity.probe.alarms.rules import AlarmRule, RuleKind, Severity

_STEADY = 0.8
"""Share of all pairs of values in a window of which the later one is larger: a trend, not noise."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that is met, and wasn't in the unit before.

    Args:
        name: of the rule.
        step: training step.
        sub_step: within it.
        metric: key.
        value: of the metric.
        threshold: that it passed; for a trend the value that it rose from.
        kind: of the rule.
        severity: of the rule.
        source: whose limit it is.
    """

    name: str
    step: int
    sub_step: int
    metric: str
    value: float
    threshold: float
    kind: RuleKind
    severity: Severity
    source: str

    @property
    def sentence(self) -> str:
        """For people."""
        how = {
            RuleKind.ABOVE: "is above",
            RuleKind.BELOW: "is below",
            RuleKind.OVER_BASELINE: "is above the run's own start by more than",
            RuleKind.UNDER_BASELINE: "is below the run's own start by more than",
            RuleKind.RISING: "has risen steadily from",
        }[self.kind]
        by = f" ({self.source})" if self.source else ""
        return f"{self.name}: {self.metric} = {self.value:.4g} {how} {self.threshold:.4g} at step {self.step}{by}"

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {key: getattr(value, "value", value) for key, value in asdict(self).items()}


class AlarmWatch:
    """Holds rules against the metrics of one unit after the other.

    An alarm is told when its rule is first met, and again only after a unit in which it was not met.

    Args:
        rules: to watch.
    """

    def __init__(self, rules: Sequence[AlarmRule]) -> None:
        self._rules = rules
        self._baseline: dict[str, list[float]] = {}
        self._recent: dict[str, deque[float]] = {}
        self._met: set[str] = set()

    @property
    def met(self) -> frozenset[str]:
        """Names of the rules that the last unit met."""
        return frozenset(self._met)

    def look(self, step: int, sub_step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Look at a unit.

        Args:
            step: training step.
            sub_step: within it.
            metrics: finite values by key.

        Returns:
            Alarms that begin with it.
        """
        begun: list[Alarm] = []
        for rule in self._rules:
            if rule.metric not in metrics:
                continue
            value = metrics[rule.metric]
            threshold = self._threshold(rule, value)
            if threshold is None:
                self._met.discard(rule.name)
            elif rule.name not in self._met:
                self._met.add(rule.name)
                fields = (rule.name, step, sub_step, rule.metric, value, threshold)
                begun.append(Alarm(*fields, rule.kind, rule.severity, rule.source))
        return begun

    def _threshold(self, rule: AlarmRule, value: float) -> float | None:
        """What the value passed; None where the rule is not met."""
        if rule.kind is RuleKind.ABOVE:
            return rule.limit if value > rule.limit else None
        if rule.kind is RuleKind.BELOW:
            return rule.limit if value < rule.limit else None
        if rule.kind is RuleKind.RISING:
            return self._risen_from(rule, value)
        start = self._baseline.setdefault(rule.name, [])
        if len(start) < rule.window:
            start.append(value)
            return None
        threshold = rule.limit * statistics.median(start)
        over = value > threshold if rule.kind is RuleKind.OVER_BASELINE else value < threshold
        return threshold if over else None

    def _risen_from(self, rule: AlarmRule, value: float) -> float | None:
        values = self._recent.setdefault(rule.name, deque(maxlen=rule.window))
        values.append(value)
        if len(values) < rule.window:
            return None
        found = list(values)
        pairs = [(a, b) for i, a in enumerate(found) for b in found[i + 1 :]]
        rising = sum(b > a for a, b in pairs) / len(pairs)
        third = max(1, rule.window // 3)
        first, last = statistics.median(found[:third]), statistics.median(found[-third:])
        return first if rising >= _STEADY and last > rule.limit * first else None


__all__ = ["Alarm", "AlarmWatch"]
