"""Terminal and JSON output of ``logparity analyze`` for a store or for dumps of another tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from logparity.cli.plain_text import cell, plain
from logparity.probe.measured import MeasuredRun
from logparity.probe.metrics.catalog import metrics_of
from logparity.report.group_rows import GROUP_TITLES, condensed
from logparity.report.numbers import number

_TEXT = ("sample", "token", "side", "first: sample")
_STEPS, _GROUP_ROWS, _TOKENS = 20, 12, 12
_LABELLED = 24
_OVERALL = (
    *("mismatch/tokens", "mismatch/sequences", "mismatch/excluded_tokens", "mismatch/prob_diff_mean"),
    *("mismatch/prob_diff_p50", "mismatch/prob_diff_p99", "mismatch/prob_diff_max", "mismatch/prob_pearson"),
    *("mismatch/log_ratio_mean", "mismatch/log_ratio_abs_mean", "mismatch/log_ratio_abs_p99"),
    *("mismatch/log_ratio_abs_max", "mismatch/k3", "mismatch/ess", "mismatch/multiplicative_error"),
    *("mismatch/chi2_token", "mismatch/sequence_log_ratio_abs_max", "mismatch/length_times_kl"),
    *("mismatch/perplexity_rollout", "mismatch/perplexity_train", "mismatch/confident_disagreement_tokens"),
)
_BY_STEP = {
    "tokens": "mismatch/tokens",
    "mean |dp|": "mismatch/prob_diff_mean",
    "mean |L|": "mismatch/log_ratio_abs_mean",
    "p99 |L|": "mismatch/log_ratio_abs_p99",
    "k3": "mismatch/k3",
    "ess": "mismatch/ess",
}


def print_run(console: Console, run: MeasuredRun) -> None:
    """Print a run as tables; text from data is made safe for a terminal."""
    overall = metrics_of(run.whole)
    tokens, steps = int(overall["mismatch/tokens"]), len(run.steps)
    layouts = ", ".join(sorted(run.whole.layouts))
    title = f"{plain(run.name)}: {tokens:,} usable tokens, {steps} step{'s' if steps != 1 else ''} ({layouts})"
    legend = "dp: difference of the two probabilities of a token; L: log_ratio, train minus rollout, in nats"
    console.print(title, style="bold", highlight=False, markup=False)
    console.print(legend, highlight=False, markup=False)
    for note in run.notes:
        console.print(f"! {plain(note)}", style="yellow", highlight=False, markup=False)
    for sentence in run.alarms[-10:]:
        console.print(f"Alarm {plain(sentence)}", style="red", highlight=False, markup=False)
    console.print(_table("All usable tokens", ("", "value"), _overall(overall)))
    if run.whole.census.counts:
        names = ("left out", "count", "first: sample", "position", "side", "value")
        console.print(_table("Census", names, _census(run)))
    console.print(_table("By step", ("step", *_BY_STEP, "alarms"), _steps(run)))
    unordered = {*run.whole.labelled, "turn", "version_lag"}
    for group, rows in run.whole.group_rows().items():
        rows = rows[:_LABELLED] if group in unordered else rows
        limit = _LABELLED if group in unordered else _GROUP_ROWS
        title = f"By {GROUP_TITLES.get(group, plain(group))}"
        console.print(_table(title, ("", "tokens", "mean |dp|", "mean L", "mean |L|", "k3"), _group(rows, limit)))
    if run.worst:
        heads = ("sample", "step", "position", "token", "rollout", "train", "L")
        console.print(_table("Tokens with the largest |L| (log-probs)", heads, _worst(run)))
    if run.whole.sequences.worst:
        columns = ("sample", "tokens", "sum L", "mean L")
        console.print(_table("Sequences with the largest |sum L|", columns, _sequences(run)))


def run_as_json(run: MeasuredRun) -> dict[str, Any]:
    """The same for machines; finite numbers only."""
    return {
        "name": run.name,
        "metrics": metrics_of(run.whole),
        "groups": run.whole.group_rows(),
        "census": run.whole.census.to_json(),
        "steps": [
            {"step": step.step, "label": step.label, "metrics": step.metrics, "alarms": list(step.alarms)}
            for step in run.steps
        ],
        "worst_tokens": list(run.worst),
        "alarms": list(run.alarms),
        "notes": list(run.notes),
    }


def _overall(metrics: dict[str, float]) -> Iterable[Sequence[str]]:
    return ((key.removeprefix("mismatch/"), number(metrics[key])) for key in _OVERALL if key in metrics)


def _census(run: MeasuredRun) -> Iterable[Sequence[str]]:
    census = run.whole.census
    for defect, count in sorted(census.counts.items()):
        first = census.places[defect][0]
        where = "" if first.position < 0 else str(first.position)
        yield defect, f"{count:,}", first.key, where, first.side, first.value


def _steps(run: MeasuredRun) -> Iterable[Sequence[str]]:
    steps = list(run.steps)
    if len(steps) > _STEPS:
        steps = [*steps[: _STEPS // 2], *steps[-_STEPS // 2 :]]
    for step in steps:
        metrics = step.metrics
        values = (_short(metrics[key]) if key in metrics else "-" for key in _BY_STEP.values())
        yield step.label.removeprefix("step "), *values, str(len(step.alarms) or "")


def _group(rows: Sequence[dict[str, Any]], limit: int) -> Iterable[Sequence[str]]:
    for row in condensed(rows, limit):
        means = (number(row[name]) for name in ("prob_diff", "log_ratio", "log_ratio_abs", "k3"))
        yield str(row["label"]), f"{row['count']:,}", *means


def _worst(run: MeasuredRun) -> Iterable[Sequence[str]]:
    for row in run.worst[:_TOKENS]:
        token = row["text"] if row["text"] is not None else "" if row["token_id"] is None else f"id {row['token_id']}"
        step = "" if row["step"] < 0 else str(row["step"])
        values = (f"{row[name]:.3f}" for name in ("rollout_log_prob", "old_log_prob", "log_ratio"))
        yield row["key"], step, str(row["position"]), token, *values


def _sequences(run: MeasuredRun) -> Iterable[Sequence[str]]:
    return ((w.key, f"{w.tokens:,}", f"{w.log_ratio:.3f}", f"{w.mean:.5f}") for w in run.whole.sequences.worst)


def _short(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.3g}"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        text = index == 0 or name in _TEXT
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    return table


__all__ = ["print_run", "run_as_json"]
