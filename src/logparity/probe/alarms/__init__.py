"""Alarms of the probe: rules, named sets of them, and how they are told."""

from __future__ import annotations

from logparity.probe.alarms.config import AlarmConfig
from logparity.probe.alarms.presets import PRESETS
from logparity.probe.alarms.rules import AlarmRule, RuleKind, Severity

__all__ = ["PRESETS", "AlarmConfig", "AlarmRule", "RuleKind", "Severity"]
