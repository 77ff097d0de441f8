"""The offline analysis as one picture: trend, distribution, position, and a batch token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from logparity.errors import MissingDependencyError
from logparity.probe.analysis import Analysis
from logparity.probe.atomic import atomic_file
from logparity.probe.npy_files import open_pair
from logparity.report.smoothing import running_mean

_BLUE, _ORANGE, _GREY = "#2f6fb2", "#d9772b", "#8a8f98"
_MAP_ROWS, _MAP_COLUMNS = 64, 512


def draw_analysis(analysis: Analysis, path: Path) -> None:
    """Draw four panels into a PNG.

    Args:
        analysis: what `analyze_folder` returned.
        path: the file; an existing one is replaced.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError('matplotlib draws the plot: pip install "logparity[plot]".') from error
    figure = Figure(figsize=(11, 7.5), dpi=130, layout="constrained")
    axes = figure.subplots(2, 2)
    _trend(axes[0, 0], analysis)
    _distribution(axes[0, 1], analysis)
    _positions(axes[1, 0], analysis)
    _token_map(figure, axes[1, 1], analysis)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(11)
    moments = analysis.summary.moments
    mean = f"mean {moments.mean:.2e}, max {moments.maximum:.2e}" if moments.count else "no valid token"
    figure.suptitle(f"|p_rollout - p_train| · {moments.count:,} tokens · {mean}", x=0.01, ha="left", weight="bold")
    with atomic_file(path) as file:
        figure.savefig(file, format="png")


def _trend(axis: Any, analysis: Analysis) -> None:
    steps = [step for step in analysis.steps if step.summary.moments.count]
    x = np.arange(len(steps))
    style = "o-" if len(steps) <= 30 else "-"
    largest = [step.summary.moments.maximum for step in steps]
    axis.plot(x, largest, style, color=_GREY, markersize=3, linewidth=1, label="max")
    axis.plot(
        x, [s.summary.percentiles[99] for s in steps], style, color=_ORANGE, markersize=4, label="99th percentile"
    )
    axis.plot(x, [s.summary.moments.mean for s in steps], style, color=_BLUE, markersize=5, label="mean")
    shown = sorted({int(i) for i in np.linspace(0, max(len(steps) - 1, 0), min(len(steps), 8))})
    axis.set_xticks(shown, [steps[i].name.label.removeprefix("step ") for i in shown])
    if steps and min(s.summary.moments.mean for s in steps) > 0:
        axis.set_yscale("log")
    axis.set(title="By step", xlabel="step")
    axis.grid(axis="y", alpha=0.25)
    if steps:
        axis.legend(frameon=False, fontsize=9)


def _distribution(axis: Any, analysis: Analysis) -> None:
    edges, counts = analysis.histogram.lower_edges(), analysis.histogram.counts
    bins = np.logspace(-7, 0, 71)
    small = int(counts[edges < bins[0]].sum())
    height, _ = np.histogram(edges.astype(np.float64), bins=bins, weights=counts)
    axis.bar(bins[:-1], height, width=np.diff(bins), align="edge", color=_BLUE)
    axis.set_xscale("log")
    for percent in (50, 99):
        value = analysis.summary.percentiles.get(percent)
        if value:
            axis.axvline(value, color=_ORANGE, linewidth=1)
            axis.annotate(f" p{percent}", (value, 1), xycoords=("data", "axes fraction"), va="top", color=_ORANGE)
    note = f" ({small:,} below 1e-7 not drawn)" if small else ""
    axis.set(title=f"Distribution{note}", xlabel="|p_rollout - p_train|", ylabel="tokens")


def _positions(axis: Any, analysis: Analysis) -> None:
    axis.plot(analysis.position_mean, color=_BLUE, linewidth=1)
    window = max(1, len(analysis.position_mean) // 16)
    if window > 1:
        axis.plot(
            running_mean(analysis.position_mean, analysis.position_count, window),
            color=_ORANGE,
            label=f"over {window} positions",
        )
        axis.legend(frameon=False, fontsize=9)
    axis.set(title="Mean by response position", xlabel="position in the response", ylim=(0, None))
    axis.grid(axis="y", alpha=0.25)


def _token_map(figure: Any, axis: Any, analysis: Analysis) -> None:
    from matplotlib.colors import LogNorm

    last = analysis.steps[-1]
    diff, mask = (np.asarray(a[:_MAP_ROWS, :_MAP_COLUMNS]) for a in open_pair(analysis.folder, last.name))
    values = np.where((mask != 0) & np.isfinite(diff), diff, np.nan)
    used = np.flatnonzero((mask != 0).any(axis=0))
    values = values[:, : int(used[-1]) + 1] if used.size else values[:, :1]
    image = axis.imshow(
        np.maximum(values, 1e-5), aspect="auto", norm=LogNorm(1e-5, 1), cmap="magma_r", interpolation="nearest"
    )
    figure.colorbar(image, ax=axis, pad=0.01)
    cut = f", first {_MAP_ROWS} samples" if last.shape[0] > _MAP_ROWS else ""
    axis.set(title=f"Token by token, {last.name.label}{cut}", xlabel="position in the response", ylabel="sample")


__all__ = ["draw_analysis"]
