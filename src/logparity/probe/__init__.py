"""Per-token comparison of train and rollout log-probs: metrics, grid, files, offline analysis. Needs no torch."""

from __future__ import annotations

from logparity.probe.alarms import AlarmConfig, AlarmRule, RuleKind, Severity
from logparity.probe.analysis import Analysis, analyze_folder
from logparity.probe.config import ProbeConfig
from logparity.probe.hook import TokenProbe
from logparity.probe.monitor import Probe
from logparity.probe.pairs import TokenPairs
from logparity.probe.rollout_store import StoredRollout, read_rollouts, write_rollouts
from logparity.probe.store.config import StoreConfig
from logparity.probe.store.reader import ProbeRun, open_run
from logparity.probe.verl_api import calculate_debug_metrics, calculate_token_level_prob_diff

__all__ = [
    "AlarmConfig",
    "AlarmRule",
    "Analysis",
    "Probe",
    "ProbeConfig",
    "ProbeRun",
    "RuleKind",
    "Severity",
    "StoreConfig",
    "StoredRollout",
    "TokenPairs",
    "TokenProbe",
    "analyze_folder",
    "calculate_debug_metrics",
    "calculate_token_level_prob_diff",
    "open_run",
    "read_rollouts",
    "write_rollouts",
]
