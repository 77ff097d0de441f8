"""The report's figures, as plotly figures without colours: the page sets those for light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from logparity.probe.analysis import Analysis
from logparity.probe.npy_files import open_pair
from logparity.report.run_folder import RunFolder, Series
from logparity.report.smoothing import running_mean
from logparity.report.token_survey import GRID_CELLS, TokenSurvey

BLUE, ORANGE, GREY = "#3b7dd8", "#e07b39", "#8a919c"
_MAP_ROWS, _MAP_COLUMNS = 48, 512
_SMOOTH_FROM = 48
# From "nothing" in the page's own background to the strongest difference; legible on white and on black.
_HEAT = [
    (0.0, "rgba(224,123,57,0.04)"),
    (0.5, "rgba(224,123,57,0.45)"),
    (0.8, "rgb(214,69,65)"),
    (1.0, "rgb(120,28,109)"),
]
_DENSITY = [(0.0, "rgba(59,125,216,0.25)"), (0.5, "rgb(59,125,216)"), (1.0, "rgb(200,45,110)")]


def reward_figure(run: RunFolder) -> go.Figure | None:
    """Mean reward by step; None where the run has no reward."""
    series = run.series("reward/mean")
    return None if series is None else _lines([("mean reward", series, BLUE)], "reward", log=False)


def mismatch_figure(run: RunFolder) -> go.Figure | None:
    """Mean, 99th percentile, and largest ``|dp|`` by step; None where neither metrics nor files have them."""
    names = (
        ("largest", "training/rollout_probs_diff_max", GREY),
        ("99th percentile", "mismatch/prob_diff_p99", ORANGE),
        ("mean", "training/rollout_probs_diff_mean", BLUE),
    )
    found = [(name, run.series(key), colour) for name, key, colour in names]
    lines = [(name, series, colour) for name, series, colour in found if series is not None]
    if not lines and run.analysis is not None:
        lines = _from_files(run.analysis)
    return _lines(lines, "|p_rollout - p_train|", log=True) if lines else None


def agreement_figure(survey: TokenSurvey) -> go.Figure | None:
    """Rollout against train probability of every token: points, or their density where there are many."""
    if not survey.compared:
        return None
    figure = go.Figure()
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": GREY, "width": 1}, hoverinfo="skip")
    if len(survey.points):
        figure.add_scatter(
            x=survey.points[:, 0],
            y=survey.points[:, 1],
            mode="markers",
            marker={"size": 4, "opacity": 0.45, "color": BLUE},
            hovertemplate="rollout %{x:.4f}<br>train %{y:.4f}<extra></extra>",
        )
    else:
        centres = (np.arange(GRID_CELLS) + 0.5) / GRID_CELLS
        tokens = survey.density.T
        figure.add_heatmap(
            x=centres,
            y=centres,
            z=np.log10(tokens, out=np.full(tokens.shape, np.nan), where=tokens > 0),
            customdata=tokens,
            colorscale=_DENSITY,
            colorbar=_log_bar(0, int(np.log10(tokens.max())), "tokens"),
            hovertemplate="rollout %{x:.2f}<br>train %{y:.2f}<br>%{customdata} tokens<extra></extra>",
        )
    figure.update_xaxes(title="probability in the rollout engine", range=[0, 1], constrain="domain")
    figure.update_yaxes(title="probability in the trainer", range=[0, 1], scaleanchor="x", constrain="domain")
    return _finish(figure, height=440)


def position_figure(analysis: Analysis | None) -> go.Figure | None:
    """Mean ``|dp|`` by position in the response; None without files."""
    if analysis is None or not analysis.position_count.any():
        return None
    width = int(np.flatnonzero(analysis.position_count)[-1]) + 1
    mean, count = analysis.position_mean[:width], analysis.position_count[:width]
    figure = go.Figure()
    hover = "position %{x}<br>mean %{y:.5f}<br>%{customdata} tokens<extra></extra>"
    figure.add_scatter(
        y=mean,
        customdata=count,
        mode="lines",
        name="each position",
        line={"color": BLUE, "width": 1},
        hovertemplate=hover,
    )
    if width >= _SMOOTH_FROM:
        smooth = running_mean(mean, count, width // 16)
        name = f"over {width // 16} positions"
        figure.add_scatter(y=smooth, mode="lines", name=name, line={"color": ORANGE, "width": 2}, hoverinfo="skip")
    figure.update_xaxes(title="position in the response")
    figure.update_yaxes(title="mean |p_rollout - p_train|", rangemode="tozero")
    return _finish(figure, height=440, legend=width >= _SMOOTH_FROM)


def token_map_figure(analysis: Analysis | None) -> go.Figure | None:
    """``|dp|`` of the last step, sample by position; None without files."""
    if analysis is None or not analysis.summary.moments.count:
        return None
    last = analysis.steps[-1]
    diff, mask = (np.asarray(a[:_MAP_ROWS, :_MAP_COLUMNS]) for a in open_pair(analysis.folder, last.name))
    use = (mask != 0) & np.isfinite(diff)
    used = np.flatnonzero(use.any(axis=0))
    width = int(used[-1]) + 1 if used.size else 1
    diff, use = diff[:, :width], use[:, :width]
    figure = go.Figure()
    figure.add_heatmap(
        z=np.where(use, np.log10(np.maximum(diff, 1e-4)), np.nan).astype(np.float32),
        customdata=np.where(use, diff, np.nan).astype(np.float32),
        zmin=-4,
        zmax=0,
        xgap=1 if width <= 128 else 0,
        ygap=1,
        colorscale=_HEAT,
        colorbar=_log_bar(-4, 0, "|Δp|"),
        hoverongaps=False,
        hovertemplate="sample %{y}, position %{x}<br>|Δp| %{customdata:.5f}<extra></extra>",
    )
    figure.update_xaxes(title="position in the response", showgrid=False)
    figure.update_yaxes(title="sample", autorange="reversed", showgrid=False)
    return _finish(figure, height=max(260, min(640, 120 + 11 * len(diff))))


def token_map_note(analysis: Analysis) -> str:
    """Which part of which step the token map shows."""
    last = analysis.steps[-1]
    samples, positions = min(last.shape[0], _MAP_ROWS), min(last.shape[1], _MAP_COLUMNS)
    part = "all samples" if samples == last.shape[0] else f"the first {samples} of {last.shape[0]:,} samples"
    cut = "" if positions == last.shape[1] else f", the first {positions} of {last.shape[1]:,} positions"
    return f"{last.name.label[0].upper()}{last.name.label[1:]}, {part}{cut}"


def _from_files(analysis: Analysis) -> list[tuple[str, Series, str]]:
    steps = [step for step in analysis.steps if step.summary.moments.count and not step.name.sub_step]
    x = [step.name.step for step in steps]
    return [
        ("largest", (x, [s.summary.moments.maximum for s in steps]), GREY),
        ("99th percentile", (x, [s.summary.percentiles[99] for s in steps]), ORANGE),
        ("mean", (x, [s.summary.moments.mean for s in steps]), BLUE),
    ]


def _lines(lines: Sequence[tuple[str, Series, str]], title: str, *, log: bool) -> go.Figure:
    figure = go.Figure()
    for name, (steps, values), colour in lines:
        figure.add_scatter(
            x=steps,
            y=values,
            name=name,
            mode="lines+markers" if len(steps) <= 40 else "lines",
            line={"color": colour, "width": 1.2 if colour == GREY else 2},
            marker={"size": 5},
            hovertemplate=f"step %{{x}}<br>{name} %{{y:.5g}}<extra></extra>",
        )
    figure.update_xaxes(title="step", tickformat="d", nticks=8)
    figure.update_yaxes(title=title)
    if log and all(value > 0 for _, (_, values), _ in lines for value in values):
        figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    elif not log:
        figure.update_yaxes(rangemode="tozero")
    return _finish(figure, legend=len(lines) > 1)


def _finish(figure: go.Figure, *, height: int = 320, legend: bool = False) -> go.Figure:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 58, "r": 12, "t": 28 if legend else 12, "b": 46},
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        dragmode=False,
    )
    return figure


def _log_bar(low: int, high: int, title: str) -> dict[str, Any]:
    ticks = list(range(low, high + 1))
    text = [f"{10.0**t:g}" for t in ticks]
    return {"tickvals": ticks, "ticktext": text, "title": {"text": f"{title}<br> "}, "thickness": 10, "outlinewidth": 0}


__all__ = [
    "agreement_figure",
    "mismatch_figure",
    "position_figure",
    "reward_figure",
    "token_map_figure",
    "token_map_note",
]
