"""One HTML page about a run of the store (or dumps of another tool): trends, distributions, groups, worst tokens."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from logparity.errors import RunFolderError
from logparity.probe.atomic import atomic_file
from logparity.probe.measured import MeasuredRun
from logparity.probe.metrics.catalog import METRICS, metrics_of
from logparity.probe.metrics.histogram import SizeHistogram, lower_edges
from logparity.report.embed import csp_hash, escape_json, packed
from logparity.report.glossary import GLOSSARY
from logparity.report.group_rows import GROUP_TITLES, condensed
from logparity.report.headlines import Headline
from logparity.report.numbers import number
from logparity.report.visible_text import visible

_BLUE, _ORANGE, _GREY = "#3b7dd8", "#e07b39", "#8a919c"
_GROUP_ROWS = 48
_LABELLED_ROWS = 24


def write_run_page(run: MeasuredRun, out: Path) -> Path:
    """Write the page as one file that opens from disk, without a network.

    Args:
        run: what was measured.
        out: the file; an existing one is replaced.

    Returns:
        The file.

    Raises:
        RunFolderError: it cannot be written.
    """
    html = _render(run)
    try:
        with atomic_file(out) as file:
            file.write(html.encode("utf-8", errors="replace"))
    except OSError as error:
        raise RunFolderError(f"{out}: expected a place to write the page to, got {error}.") from error
    return out


def _render(run: MeasuredRun) -> str:
    environment = Environment(
        loader=PackageLoader("logparity.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"number": number, "visible": visible}
    groups = run.whole.group_rows()
    drawn = {
        "prob": _trend(run, "mismatch/prob_diff", "|p_rollout - p_train|"),
        "log": _trend(run, "mismatch/log_ratio_abs", "|log_ratio|, nats"),
        "kl": _single(run, "mismatch/k3", "k3, nats"),
        "ess": _single(run, "mismatch/ess", "effective sample size"),
        "prob-histogram": _histogram(run.whole.tokens.prob_diff, "|p_rollout - p_train|"),
        "log-histogram": _histogram(run.whole.tokens.log_ratio, "|log_ratio|, nats"),
        **{f"group-{index}": _group(name, rows) for index, (name, rows) in enumerate(groups.items())},
    }
    templates = files("logparity.report") / "templates"
    plotly, script = get_plotlyjs(), (templates / "page.js").read_text(encoding="utf-8")
    figures = "{" + ",".join(f'"{name}":{figure.to_json()}' for name, figure in drawn.items()) + "}"
    metrics = metrics_of(run.whole)
    return environment.get_template("run.html.j2").render(
        name=visible(run.name),
        steps=len(run.steps),
        headlines=_headlines(run, metrics),
        notes=[visible(note) for note in run.notes],
        alarms=[visible(sentence) for sentence in run.alarms],
        groups=[visible(GROUP_TITLES.get(name, name)) for name in groups],
        census=_census(run),
        worst=run.worst,
        sequences=run.whole.sequences.worst,
        metrics=[(m.key, m.formula, m.over, metrics[m.key]) for m in METRICS if m.key in metrics],
        glossary=GLOSSARY,
        figures=escape_json(figures),
        plotly=packed(plotly),
        style=(templates / "style.css").read_text(encoding="utf-8"),
        script=script,
        script_sources=f"{csp_hash(script)} {csp_hash(plotly)}",
    )


def _headlines(run: MeasuredRun, metrics: dict[str, float]) -> list[Headline]:
    excluded = int(metrics["mismatch/excluded_tokens"])
    shown = [
        ("mean |Δp|", "mismatch/prob_diff_mean", "over all usable tokens"),
        ("mean |log_ratio|", "mismatch/log_ratio_abs_mean", "nats"),
        ("99th percentile", "mismatch/log_ratio_abs_p99", "of |log_ratio|"),
        ("k3", "mismatch/k3", "estimates KL(rollout || train)"),
        ("effective sample size", "mismatch/ess", "1 is perfect"),
    ]
    numbers = [Headline(label, number(metrics[key]), note) for label, key, note in shown if key in metrics]
    tokens = f"{int(metrics['mismatch/tokens']):,}"
    numbers.append(Headline("usable tokens", tokens, f"{excluded:,} left out with a defect", excluded > 0))
    if run.alarms:
        numbers.append(Headline("alarms", f"{len(run.alarms):,}", "see below", alarming=True))
    return numbers


def _census(run: MeasuredRun) -> list[dict[str, Any]]:
    census = run.whole.census
    return [
        {"defect": defect, "count": count, "places": census.places[defect]}
        for defect, count in sorted(census.counts.items())
    ]


def _trend(run: MeasuredRun, key: str, title: str) -> go.Figure:
    names = (("largest", "_max", _GREY), ("99th percentile", "_p99", _ORANGE), ("mean", "_mean", _BLUE))
    figure = go.Figure()
    for name, end, colour in names:
        _line(figure, run, key + end, name, colour)
    figure.update_yaxes(title=title, type="log", exponentformat="power")
    return _finish(figure, legend=True)


def _single(run: MeasuredRun, key: str, title: str) -> go.Figure:
    figure = go.Figure()
    _line(figure, run, key, title, _BLUE)
    figure.update_yaxes(title=title)
    return _finish(figure)


def _line(figure: go.Figure, run: MeasuredRun, key: str, name: str, colour: str) -> None:
    points = [(index if s.step is None else s.step, s.metrics.get(key)) for index, s in enumerate(run.steps)]
    figure.add_scatter(
        x=[step for step, _ in points],
        y=[value for _, value in points],
        name=name,
        mode="lines+markers" if len(points) <= 40 else "lines",
        line={"color": colour},
        hovertemplate=f"step %{{x}}<br>{name} %{{y:.5g}}<extra></extra>",
    )
    figure.update_xaxes(title="step", tickformat="d", nticks=8)


def _histogram(histogram: SizeHistogram, title: str) -> go.Figure:
    """Eight bars an octave are enough for the eye."""
    counts, edges = histogram.counts[1:].reshape(-1, 16).sum(axis=1), lower_edges()[1:-1].reshape(-1, 16)[:, 0]
    used = np.flatnonzero(counts)
    figure = go.Figure()
    if used.size:
        shown = slice(used[0], used[-1] + 1)
        figure.add_bar(
            x=np.log10(edges[shown].astype(np.float64)).round(4).tolist(),
            y=counts[shown].tolist(),
            customdata=edges[shown].tolist(),
            marker={"color": _BLUE},
            hovertemplate="from %{customdata:.3g}<br>%{y} tokens<extra></extra>",
        )
        low, high = int(np.log10(edges[used[0]])) - 1, int(np.log10(edges[used[-1]])) + 1
        ticks = list(range(low, high + 1))
        figure.update_xaxes(tickvals=ticks, ticktext=[f"{10.0**t:g}" for t in ticks])
    figure.update_xaxes(title=title)
    figure.update_yaxes(title="tokens")
    return _finish(figure)


def _group(name: str, rows: list[dict[str, Any]]) -> go.Figure:
    ordered = name in ("position", "distance_to_end", "probability")
    shown = condensed(rows, _GROUP_ROWS) if ordered else rows[:_LABELLED_ROWS]
    figure = go.Figure()
    for mean, colour in (("log_ratio_abs", _BLUE), ("prob_diff", _ORANGE)):
        figure.add_bar(
            x=[visible(row["label"]) for row in shown],
            y=[row[mean] for row in shown],
            customdata=[row["count"] for row in shown],
            name={"log_ratio_abs": "mean |log_ratio|", "prob_diff": "mean |Δp|"}[mean],
            marker={"color": colour},
            hovertemplate="%{x}<br>%{y:.5g}<br>%{customdata} tokens<extra></extra>",
        )
    figure.update_xaxes(title=visible(GROUP_TITLES.get(name, name)), type="category", nticks=12)
    return _finish(figure, legend=True)


def _finish(figure: go.Figure, *, legend: bool = False) -> go.Figure:
    figure.update_layout(
        template="none",
        height=320,
        margin={"l": 58, "r": 12, "t": 28 if legend else 12, "b": 46},
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        dragmode=False,
        bargap=0.1,
    )
    return figure


__all__ = ["write_run_page"]
