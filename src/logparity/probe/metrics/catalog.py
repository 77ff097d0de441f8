"""Every metric of the probe in one table: key, formula, denominator, its names elsewhere, and how it is computed.

``L = old - rollout`` (train minus rollout, nats), ``w = e^L`` (``L`` clamped to +-20 in exponents), ``dp`` the
difference of the two probabilities, ``W`` the sum of ``L`` over a sequence. Tokens are those with
mask 1 and no defect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from logparity.probe.metrics.census import ROW_DEFECTS, Defect
from logparity.probe.metrics.unit import UnitMetrics

Value = float | None


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        key: in trackers and files.
        formula: what is computed.
        over: the denominator.
        names: project to what it calls the same.
        compute: the value; None where it is undefined.
    """

    key: str
    formula: str
    over: str
    names: str
    compute: Callable[[UnitMetrics], Value]


def metrics_of(unit: UnitMetrics) -> dict[str, float]:
    """All metrics that are defined, by key; finite values only."""
    values = {metric.key: metric.compute(unit) for metric in METRICS}
    return {key: value for key, value in values.items() if value is not None and math.isfinite(value)}


def markdown_table() -> str:
    """The table for the documentation."""
    lines = ["| key | formula | over | elsewhere |", "|---|---|---|---|"]
    lines += [f"| `{m.key}` | {m.formula.replace('|', chr(92) + '|')} | {m.over} | {m.names or '-'} |" for m in METRICS]
    return "\n".join(lines) + "\n"


def _n(unit: UnitMetrics) -> int:
    return unit.tokens.counts["tokens"]


def _mean(name: str, factor: float = 1.0, offset: float = 0.0) -> Callable[[UnitMetrics], Value]:
    return lambda unit: offset + factor * unit.tokens.sum(name) / _n(unit) if _n(unit) else None


def _fraction(name: str) -> Callable[[UnitMetrics], Value]:
    return lambda unit: unit.tokens.counts[name] / _n(unit) if _n(unit) else None


def _count(name: str) -> Callable[[UnitMetrics], Value]:
    return lambda unit: float(unit.tokens.counts[name])


def _std(name: str) -> Callable[[UnitMetrics], Value]:
    def compute(unit: UnitMetrics) -> Value:
        n = _n(unit)
        if n < 2:
            return None
        # In whole numbers: the difference of two nearly equal sums loses nothing.
        total, square = _units(unit, name), _units(unit, f"{name}_sq") << 79
        return math.sqrt(max(0, n * square - total * total) / (n * (n - 1) << 158))

    return compute


def _quantile(name: str, q: float) -> Callable[[UnitMetrics], Value]:
    return lambda unit: (unit.tokens.prob_diff if name == "prob_diff" else unit.tokens.log_ratio).quantile(q)


def _units(unit: UnitMetrics, name: str) -> int:
    from logparity.probe.metrics.tokens import NARROW, WIDE

    tokens = unit.tokens
    return tokens.wide.units[WIDE.index(name)] if name in WIDE else tokens.narrow.units[NARROW.index(name)]


def _weights(unit: UnitMetrics) -> tuple[Fraction, Fraction]:
    """Means of ``u = e^L - 1`` and of ``u^2``, exact."""
    n = _n(unit) << 79
    mean = Fraction(_units(unit, "k3") + _units(unit, "log_ratio") - unit.tokens.clamp.units[0], n)
    return mean, Fraction(_units(unit, "u_sq"), n)


def _ratio_mean(unit: UnitMetrics) -> Value:
    return float(1 + _weights(unit)[0]) if _n(unit) else None


def _ess(unit: UnitMetrics) -> Value:
    if not _n(unit):
        return None
    mean, square = _weights(unit)
    second = 1 + 2 * mean + square
    return float((1 + mean) ** 2 / second) if second > 0 else None


def _chi2(unit: UnitMetrics) -> Value:
    if not _n(unit):
        return None
    mean, square = _weights(unit)
    return float(2 * mean + square)


def _ratio_std(unit: UnitMetrics) -> Value:
    if _n(unit) < 2:
        return None
    mean, square = _weights(unit)
    return math.sqrt(max(0.0, float(square - mean * mean)))


def _pearson(unit: UnitMetrics) -> Value:
    n, tokens = _n(unit), unit.tokens
    if n < 2 or any(tokens.low[side] == tokens.high[side] for side in ("rollout", "train")):
        return None
    r, t, rr, both = (_units(unit, name) for name in ("p_rollout", "p_train", "p_rollout_sq", "p_both"))
    # dp^2 = pt^2 - 2 pt pr + pr^2
    tt = _units(unit, "prob_diff_sq") + 2 * both - rr
    scale = n << 79
    var_r, var_t, co = scale * rr - r * r, scale * tt - t * t, scale * both - r * t
    if var_r <= 0 or var_t <= 0:
        return None
    return max(-1.0, min(1.0, float(co / Fraction(math.isqrt(var_r * var_t)))))


def _log_perplexity(side: str) -> Callable[[UnitMetrics], Value]:
    def compute(unit: UnitMetrics) -> Value:
        if not _n(unit):
            return None
        total = unit.tokens.sum("rollout") + (unit.tokens.sum("log_ratio") if side == "train" else 0.0)
        return -total / _n(unit)

    return compute


def _exp_of(compute: Callable[[UnitMetrics], Value]) -> Callable[[UnitMetrics], Value]:
    def value(unit: UnitMetrics) -> Value:
        found = compute(unit)
        return None if found is None else math.exp(min(found, 700.0))

    return value


def _sequence_mean(name: str, offset: float = 0.0) -> Callable[[UnitMetrics], Value]:
    def compute(unit: UnitMetrics) -> Value:
        count = unit.sequences.counts["sequences"]
        return offset + unit.sequences.sum(name) / count if count else None

    return compute


def _sequence_fraction(name: str) -> Callable[[UnitMetrics], Value]:
    def compute(unit: UnitMetrics) -> Value:
        count = unit.sequences.counts["sequences"]
        return unit.sequences.counts[name] / count if count else None

    return compute


def _sequence_ess(unit: UnitMetrics) -> Value:
    count = unit.sequences.counts["sequences"]
    if not count:
        return None
    return unit.sequences.sum("weight") ** 2 / (count * unit.sequences.sum("weight_sq"))


def _length_times_kl(unit: UnitMetrics) -> Value:
    count = unit.sequences.counts["sequences"]
    return unit.tokens.sum("k3") / count if count else None


def _end(side: str, name: str) -> Callable[[UnitMetrics], Value]:
    def compute(unit: UnitMetrics) -> Value:
        ends = unit.sequences.high if side == "high" else unit.sequences.low
        return ends[name] if unit.sequences.counts["sequences"] else None

    return compute


def _worst_weight(unit: UnitMetrics) -> Value:
    return -unit.sequences.worst[0].size if unit.sequences.worst else None


def _log_ratio_abs_max(unit: UnitMetrics) -> Value:
    return max(unit.tokens.high["log_ratio"], -unit.tokens.low["log_ratio"]) if _n(unit) else None


def _ratio_end(side: str) -> Callable[[UnitMetrics], Value]:
    def compute(unit: UnitMetrics) -> Value:
        if not _n(unit):
            return None
        value = unit.tokens.low["log_ratio"] if side == "low" else unit.tokens.high["log_ratio"]
        return math.exp(max(-20.0, min(20.0, value)))

    return compute


def _excluded_fraction(unit: UnitMetrics) -> Value:
    total = _n(unit) + unit.census.excluded
    return unit.census.excluded / total if total else None


def _defect(name: str) -> Callable[[UnitMetrics], Value]:
    return lambda unit: float(unit.census.counts[name]) if unit.census.counts.get(name) else None


def _on_grid(side: str) -> Callable[[UnitMetrics], Value]:
    return lambda unit: float(unit.census.low_bits[side] == 0) if _n(unit) else None


_TOKENS, _SEQUENCES = "usable tokens", "sequences with a usable token"
_PART_A = "training/rollout_probs_diff"

_TOKEN_METRICS: Final = (
    Metric("mismatch/tokens", "number of usable tokens", "", "", _count("tokens")),
    Metric("mismatch/prob_diff_mean", "mean |dp|", _TOKENS, f"verl `{_PART_A}_mean`", _mean("prob_diff")),
    Metric("mismatch/prob_diff_std", "std of |dp|", f"{_TOKENS} - 1", f"verl `{_PART_A}_std`", _std("prob_diff")),
    Metric("mismatch/prob_diff_p50", "median of |dp|", _TOKENS, "", _quantile("prob_diff", 0.5)),
    Metric("mismatch/prob_diff_p99", "99th percentile of |dp|", _TOKENS, "", _quantile("prob_diff", 0.99)),
    Metric("mismatch/prob_diff_p999", "99.9th percentile of |dp|", _TOKENS, "", _quantile("prob_diff", 0.999)),
    Metric(
        "mismatch/prob_diff_max",
        "max |dp|",
        _TOKENS,
        f"verl `{_PART_A}_max`",
        lambda unit: unit.tokens.high["prob_diff"] if _n(unit) else None,
    ),
    Metric(
        "mismatch/prob_pearson",
        "Pearson correlation of the two probabilities",
        _TOKENS,
        "verl `training/rollout_actor_probs_pearson_corr`",
        _pearson,
    ),
    Metric("mismatch/log_ratio_mean", "mean L", _TOKENS, "", _mean("log_ratio")),
    Metric("mismatch/log_ratio_std", "std of L", f"{_TOKENS} - 1", "", _std("log_ratio")),
    Metric(
        "mismatch/log_ratio_abs_mean",
        "mean |L|",
        _TOKENS,
        "TRL `sampling/sampling_logp_difference/mean`",
        _mean("log_ratio_abs"),
    ),
    Metric("mismatch/log_ratio_abs_p50", "median of |L|", _TOKENS, "", _quantile("log_ratio", 0.5)),
    Metric("mismatch/log_ratio_abs_p99", "99th percentile of |L|", _TOKENS, "", _quantile("log_ratio", 0.99)),
    Metric("mismatch/log_ratio_abs_p999", "99.9th percentile of |L|", _TOKENS, "", _quantile("log_ratio", 0.999)),
    Metric(
        "mismatch/log_ratio_abs_max",
        "max |L|",
        _TOKENS,
        "TRL `sampling/sampling_logp_difference/max`",
        _log_ratio_abs_max,
    ),
    Metric("mismatch/k1", "mean(-L), estimates KL(rollout || train)", _TOKENS, "", _mean("log_ratio", -1.0)),
    Metric("mismatch/k2", "mean(L^2) / 2", _TOKENS, "", _mean("log_ratio_sq", 0.5)),
    Metric("mismatch/k3", "mean(e^L - 1 - L)", _TOKENS, "NeMo-RL `gen_kl_error`", _mean("k3")),
    Metric(
        "mismatch/ratio_mean",
        "mean w",
        _TOKENS,
        "TRL `sampling/importance_sampling_ratio/mean` (after its cap), NeMo-RL `sampling_importance_ratio`, "
        "slime `tis`",
        _ratio_mean,
    ),
    Metric("mismatch/ratio_std", "std of w", _TOKENS, "verl `rollout_corr/rollout_is_std` (after its cap)", _ratio_std),
    Metric("mismatch/ratio_min", "min w", _TOKENS, "TRL `sampling/importance_sampling_ratio/min`", _ratio_end("low")),
    Metric(
        "mismatch/ratio_max",
        "max w",
        _TOKENS,
        "TRL `sampling/importance_sampling_ratio/max` (after its cap)",
        _ratio_end("high"),
    ),
    Metric(
        "mismatch/ess",
        "mean(w)^2 / mean(w^2)",
        _TOKENS,
        "verl `rollout_corr/rollout_is_eff_sample_size` (after its cap)",
        _ess,
    ),
    Metric("mismatch/chi2_token", "mean(w^2) - 1", _TOKENS, "verl `rollout_corr/chi2_token`", _chi2),
    Metric(
        "mismatch/multiplicative_error",
        "mean e^|L|",
        _TOKENS,
        "NeMo-RL `token_mult_prob_error`",
        _mean("error", offset=1.0),
    ),
    Metric(
        "mismatch/ratio_outside_half_to_two",
        "share of tokens with |L| > ln 2",
        _TOKENS,
        "",
        _fraction("ratio_outside_half_to_two"),
    ),
    Metric(
        "mismatch/tis_truncated",
        "share with w > 2",
        _TOKENS,
        "slime `tis_clipfrac` (its cap)",
        _fraction("tis_truncated"),
    ),
    Metric(
        "mismatch/icepop_masked",
        "share with w outside [0.5, 5]",
        _TOKENS,
        "verl `rollout_corr/rollout_is_oob_ratio` (its bounds)",
        _fraction("icepop_masked"),
    ),
    Metric(
        "mismatch/confident_disagreement_tokens",
        "tokens with rollout p >= 0.5 and L < -2",
        "",
        "",
        _count("confident_disagreement"),
    ),
    Metric(
        "mismatch/confident_disagreement_fraction",
        "share of those",
        _TOKENS,
        "",
        _fraction("confident_disagreement"),
    ),
    Metric("mismatch/clamped_tokens", "tokens with |L| > 20", "", "", _count("clamped")),
    Metric("mismatch/perplexity_rollout", "exp(mean of -rollout)", _TOKENS, "", _exp_of(_log_perplexity("rollout"))),
    Metric("mismatch/perplexity_train", "exp(mean of -old)", _TOKENS, "", _exp_of(_log_perplexity("train"))),
    Metric("mismatch/perplexity_ratio", "train over rollout", _TOKENS, "", _exp_of(_mean("log_ratio", -1.0))),
    Metric(
        "mismatch/entropy_mean",
        "mean entropy",
        "tokens with a finite entropy",
        "verl `actor/entropy`",
        lambda unit: unit.entropy.value(0) / unit.entropy_tokens if unit.entropy_tokens else None,
    ),
)

_SEQUENCE_METRICS: Final = (
    Metric("mismatch/sequences", "sequences", "", "", lambda unit: float(unit.sequences.counts["sequences"])),
    Metric("mismatch/sequence_ratio_mean", "mean e^W", _SEQUENCES, "", _sequence_mean("weight")),
    Metric("mismatch/sequence_ess", "mean(e^W)^2 / mean(e^2W)", _SEQUENCES, "", _sequence_ess),
    Metric(
        "mismatch/sequence_ratio_outside_half_to_two",
        "share with |W| > ln 2",
        _SEQUENCES,
        "",
        _sequence_fraction("weight_outside_half_to_two"),
    ),
    Metric(
        "mismatch/sequence_weight_clamped", "share with |W| > 20", _SEQUENCES, "", _sequence_fraction("weight_clamped")
    ),
    Metric(
        "mismatch/sequence_masked_tokens",
        "share of tokens in sequences with |mean L| > ln 2",
        _TOKENS,
        "verl `rollout_corr/rollout_rs_masked_fraction` (its bounds)",
        lambda unit: unit.sequences.counts["tokens_in_masked"] / _n(unit) if _n(unit) else None,
    ),
    Metric("mismatch/sequence_log_ratio_abs_max", "max |W|", _SEQUENCES, "", _worst_weight),
    Metric(
        "mismatch/sequence_log_ratio_abs_mean",
        "mean over sequences of mean |L|",
        _SEQUENCES,
        "slime, miles `train_rollout_logprob_abs_diff`",
        _sequence_mean("log_ratio_abs_mean"),
    ),
    Metric(
        "mismatch/length_times_kl",
        "sum of (e^L - 1 - L) per sequence; from 20 on the weight of a sequence is dead",
        _SEQUENCES,
        "",
        _length_times_kl,
    ),
)

_VERL_METRICS: Final = tuple(
    Metric(f"rollout_corr/{name}", formula, over, f"verl `rollout_corr/{name}`", compute)
    for name, formula, over, compute in (
        ("kl", "mean(-L)", _TOKENS, _mean("log_ratio", -1.0)),
        ("k3_kl", "mean(e^L - 1 - L), L clamped", _TOKENS, _mean("k3")),
        ("chi2_token", "mean(w^2) - 1", _TOKENS, _chi2),
        ("chi2_seq", "mean(e^2W) - 1", _SEQUENCES, _sequence_mean("weight_sq", -1.0)),
        ("training_ppl", "mean of exp(mean of -old)", _SEQUENCES, _sequence_mean("ppl_train")),
        ("rollout_ppl", "mean of exp(mean of -rollout)", _SEQUENCES, _sequence_mean("ppl_rollout")),
        (
            "training_log_ppl",
            "mean of mean(-old)",
            _SEQUENCES,
            lambda unit: _total(_sequence_mean("log_ppl_rollout")(unit), _sequence_mean("log_ppl_diff")(unit)),
        ),
        ("rollout_log_ppl", "mean of mean(-rollout)", _SEQUENCES, _sequence_mean("log_ppl_rollout")),
        ("log_ppl_diff", "mean of mean(-L)", _SEQUENCES, _sequence_mean("log_ppl_diff")),
        ("log_ppl_abs_diff", "mean of |mean(L)|", _SEQUENCES, _sequence_mean("log_ppl_abs_diff")),
        ("log_ppl_diff_max", "max of mean(-L)", _SEQUENCES, _end("high", "log_ppl_diff")),
        ("log_ppl_diff_min", "min of mean(-L)", _SEQUENCES, _end("low", "log_ppl_diff")),
        ("ppl_ratio", "mean of exp(mean(-L))", _SEQUENCES, _sequence_mean("ppl_ratio")),
    )
)

_CENSUS_METRICS: Final = (
    Metric("mismatch/excluded_tokens", "tokens with a defect", "", "", lambda unit: float(unit.census.excluded)),
    Metric("mismatch/excluded_fraction", "share of those", "tokens with mask 1", "", _excluded_fraction),
    *(
        Metric(f"census/{defect.value}", f"tokens: {text}", "", "", _defect(defect.value))
        for defect, text in (
            (Defect.NONE, "a log-prob is None"),
            (Defect.NAN, "a log-prob is NaN"),
            (Defect.INF, "a log-prob is +inf, or the rollout's is -inf"),
            (Defect.ZERO_PROB, "the trainer's log-prob is -inf: it says that what was sampled cannot be"),
            (Defect.SENTINEL, "a log-prob <= -1000: a placeholder"),
            (Defect.POSITIVE, "a log-prob above 1e-4"),
            (Defect.ZERO_FOR_MISSING, "exactly 0 on one side, more than 1 nat lower on the other"),
        )
    ),
    *(
        Metric(f"census/{name}", f"rows left out: {name.replace('_', ' ')}", "", "", _defect(name))
        for name in ROW_DEFECTS
    ),
    Metric("census/rollout_on_bf16_grid", "1: all rollout log-probs are bfloat16 values", "", "", _on_grid("rollout")),
    Metric("census/train_on_bf16_grid", "1: all train log-probs are bfloat16 values", "", "", _on_grid("train")),
)


def _total(a: Value, b: Value) -> Value:
    return None if a is None or b is None else a + b


METRICS: Final = (*_TOKEN_METRICS, *_SEQUENCE_METRICS, *_VERL_METRICS, *_CENSUS_METRICS)
"""The table."""

__all__ = ["METRICS", "Metric", "markdown_table", "metrics_of"]
