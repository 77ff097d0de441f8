"""Named sets of rules. Limits differ between projects, so each set says whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from logparity.probe.alarms.rules import AlarmRule, RuleKind, Severity

_MEAN, _ESS, _RATIO = "mismatch/prob_diff_mean", "mismatch/ess", "mismatch/ratio_mean"
_VERL = "verl's guide on rollout correction"
_NEMO = "NeMo-RL's guide on log-prob errors"
_OWN = "logparity"

PRESETS: Mapping[str, tuple[AlarmRule, ...]] = MappingProxyType(
    {
        "verl": (
            AlarmRule("verl.prob_diff_notice", _MEAN, RuleKind.ABOVE, 0.005, severity=Severity.NOTICE, source=_VERL),
            AlarmRule("verl.prob_diff", _MEAN, RuleKind.ABOVE, 0.01, source=_VERL),
            AlarmRule("verl.ratio_high", _RATIO, RuleKind.ABOVE, 2.0, source=_VERL),
            AlarmRule("verl.ratio_low", _RATIO, RuleKind.BELOW, 0.5, source=_VERL),
            AlarmRule("verl.ess", _ESS, RuleKind.BELOW, 0.3, source=_VERL),
            AlarmRule("verl.chi2_token", "mismatch/chi2_token", RuleKind.ABOVE, 1.0, source=_VERL),
        ),
        "nemo_rl": (
            AlarmRule(
                "nemo_rl.multiplicative_error", "mismatch/multiplicative_error", RuleKind.ABOVE, 1.05, source=_NEMO
            ),
        ),
        # FP8 runs sit at a mean of 0.015 and are none the worse for it: there, only a change against the start tells.
        "baseline": (
            AlarmRule("baseline.prob_diff", _MEAN, RuleKind.OVER_BASELINE, 2.0, source=_OWN),
            AlarmRule("baseline.prob_diff_p99", "mismatch/prob_diff_p99", RuleKind.OVER_BASELINE, 2.0, source=_OWN),
            AlarmRule("baseline.ess", _ESS, RuleKind.UNDER_BASELINE, 0.7, source=_OWN),
        ),
        "trend": (
            AlarmRule("trend.prob_diff", _MEAN, RuleKind.RISING, 1.5, 12, source=_OWN),
            AlarmRule("trend.k3", "mismatch/k3", RuleKind.RISING, 2.0, 12, source=_OWN),
        ),
        "sanity": (
            # Rounding moves a log-prob by hundredths; two nats on a likely token are another cause.
            AlarmRule(
                "sanity.confident_disagreement",
                "mismatch/confident_disagreement_fraction",
                RuleKind.ABOVE,
                1e-4,
                source=_OWN,
            ),
            AlarmRule("sanity.excluded", "mismatch/excluded_fraction", RuleKind.ABOVE, 0.001, source=_OWN),
        ),
    }
)
"""Name to rules."""

__all__ = ["PRESETS"]
