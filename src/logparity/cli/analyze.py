"""``logparity analyze``: what a folder of token-level probability differences says."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from logparity.cli.plain_text import cell, plain
from logparity.cli.threshold import exit_code, require_limit
from logparity.errors import MissingDependencyError, RunFolderError
from logparity.probe.analysis import Analysis, StepAnalysis, Summary, analyze_folder
from logparity.probe.measured import MeasuredRun, measured_run
from logparity.probe.metrics.catalog import metrics_of
from logparity.probe.store.folder import is_store
from logparity.probe.store.reader import open_run

_DUMPS = (".npz", ".jsonl", ".parquet", ".pt")
_SHOWN_STEPS = 20
_SHOWN_SAMPLES = 8


def analyze(
    folder: Path,
    *,
    out: Path | None = None,
    plot: bool = True,
    positions: int = 12,
    fail_above: float | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Analyse what the probe saved, or what another tool dumped.

    Takes the probe's run folder (run_dir), a folder of its pairs prob_diff_step_N.npy / prob_mask_step_N.npy
    (save_dir), or a file or folder with both log-probs of every token (npz, jsonl, parquet, pt).

    Of pairs, each value is |p_rollout - p_train| of one response token: how far the trainer's probability is from the
    one the rollout engine sampled with. Prints count, mean, standard deviation, percentiles and maximum over all valid
    tokens, by step, by response position and by sample, and draws them into one PNG. Everything else holds log-probs
    as well: it gives the full set of metrics, groups, census and worst tokens, and an HTML page.

    How to read it: two healthy bf16 engines differ by some thousandths on average, with single tokens above 0.1. A mean
    that grows from step to step, or with the position, is a fault; a mean above 0.01 deserves a look.

    Examples: `logparity analyze runs/demo/prob_diff`, `logparity analyze dump.npz`, or for a script
    `logparity analyze runs/demo/prob_diff --json | jq .summary.mean`.

    Args:
        folder: the probe's run_dir or save_dir, or a dump.
        out: PNG (pairs) or HTML page (all else) to write; by default FOLDER_analysis.png or .html beside the folder.
        plot: write it (the PNG needs the extra: pip install "logparity[plot]").
        positions: rows of the table by response position; a row covers a range where the response is longer.
        fail_above: exit with code 1 where the mean |p_rollout - p_train| over all valid tokens is above this.
        as_json: print one JSON object in place of tables; draws only where --out is given.

    Returns:
        Exit code 0, or 1 where the mean difference is above --fail-above; bad input raises and ends in exit code 2.

    Raises:
        MissingDependencyError: --out is given and matplotlib is not installed.
    """
    require_limit(fail_above)
    if not _holds_pairs(folder):
        return exit_code(_analyze_run(folder, out, plot, as_json), fail_above)
    analysis = analyze_folder(folder)
    moments = analysis.summary.moments
    _show(analysis, out, plot, positions, as_json)
    return exit_code(moments.mean if moments.count else None, fail_above)


def _show(analysis: Analysis, out: Path | None, plot: bool, positions: int, as_json: bool) -> None:
    if as_json:
        if out is not None:
            _draw(analysis, out)
        sys.stdout.write(json.dumps(_as_json(analysis), allow_nan=False) + "\n")
        return
    console = Console()
    _print(console, analysis, positions)
    if plot:
        folder = analysis.folder.resolve()
        target = out or folder.with_name(f"{folder.name}_analysis.png")
        try:
            _draw(analysis, target)
            console.print(f"Plot: {plain(target)}", markup=False, highlight=False, soft_wrap=True)
        except MissingDependencyError as error:
            if out is not None:
                raise
            console.print(f"No plot: {plain(error)}", markup=False, highlight=False, soft_wrap=True)


def _holds_pairs(path: Path) -> bool:
    """Whether pairs are wanted: they are there, or nothing else is, and their reader says best what is missing."""
    if path.is_file() or is_store(path):
        return False
    return any(path.glob("prob_diff*.npy")) or not any(p.suffix in _DUMPS and p.is_file() for p in path.rglob("*"))


def _analyze_run(path: Path, out: Path | None, page: bool, as_json: bool) -> float | None:
    """Show it; returns its mean difference, None without a usable token."""
    from logparity.cli.analyze_run import print_run, run_as_json
    from logparity.report.run_page import write_run_page

    run = measured_run(open_run(path)) if is_store(path) else _measure_dumps(path)
    if as_json:
        sys.stdout.write(json.dumps(run_as_json(run), allow_nan=False) + "\n")
    else:
        print_run(Console(), run)
    if out is not None or (page and not as_json):
        target = write_run_page(run, out or path.resolve().with_name(f"{path.resolve().name}_analysis.html"))
        if not as_json:
            Console().print(f"Page: {plain(target)}", markup=False, highlight=False, soft_wrap=True)
    return metrics_of(run.whole).get("mismatch/prob_diff_mean")


def _measure_dumps(path: Path) -> MeasuredRun:
    from logparity.integrations.measure import measure_dumps

    return measure_dumps(path)


def _draw(analysis: Analysis, path: Path) -> None:
    from logparity.report.analysis_plot import draw_analysis

    try:
        draw_analysis(analysis, path)
    except OSError as error:
        raise RunFolderError(
            f"{path}: expected a place to write the plot to, got {error}. Give another with --out."
        ) from error


def _print(console: Console, analysis: Analysis, positions: int) -> None:
    tokens, steps = analysis.summary.moments.count, len(analysis.steps)
    title = f"|p_rollout - p_train| of {tokens:,} valid tokens in {steps} batch{'es' if steps != 1 else ''}"
    console.print(title, style="bold", highlight=False, markup=False)
    for note in _notes(analysis):
        console.print(f"! {plain(note)}", style="yellow", highlight=False, markup=False)
    console.print(_summary_table(analysis.summary))
    console.print(_step_table(analysis.steps))
    console.print(_position_table(analysis, positions))
    console.print(_sample_table(analysis.steps))


def _notes(analysis: Analysis) -> list[str]:
    notes = []
    if analysis.summary.not_finite:
        notes.append(f"{analysis.summary.not_finite:,} valid tokens are NaN or inf: left out of every figure below")
    if analysis.leaked:
        notes.append(
            f"{analysis.leaked:,} slots outside the mask are not 0: left out; the writer did not select by the mask"
        )
    if analysis.superseded:
        labels = ", ".join(name.label for name in analysis.superseded[:5])
        notes.append(f"{len(analysis.superseded)} earlier attempts left out, a later one counts: {labels}")
    if not analysis.summary.moments.count:
        notes.append("no valid token at all: the masks are empty")
    return notes


def _summary_table(summary: Summary) -> Table:
    table = _table("All valid tokens", ("", "value"))
    moments = summary.moments
    values = {"mean": moments.mean, "std": moments.std}
    values |= {f"p{percent:g}": value for percent, value in summary.percentiles.items()}
    table.add_row("tokens", f"{moments.count:,}")
    for name, value in {**values, "max": moments.maximum}.items():
        table.add_row(name, _number(value if moments.count else None))
    return table


def _step_table(steps: tuple[StepAnalysis, ...]) -> Table:
    table = _table("By step", ("step", "tokens", "mean", "std", "p50", "p99", "max"))
    for step in _thin(list(steps), _SHOWN_STEPS):
        if step is None:
            table.add_row("…")
            continue
        moments, percentiles = step.summary.moments, step.summary.percentiles
        values = (moments.mean, moments.std, percentiles.get(50), percentiles.get(99), moments.maximum)
        numbers = [_number(value if moments.count else None) for value in values]
        table.add_row(cell(step.name.label.removeprefix("step ")), f"{moments.count:,}", *numbers)
    return table


def _position_table(analysis: Analysis, rows: int) -> Table:
    table = _table("By response position", ("positions", "tokens", "mean"))
    used = np.flatnonzero(analysis.position_count)
    width = int(used[-1]) + 1 if used.size else 0
    step = max(1, math.ceil(width / max(1, rows)))
    for start in range(0, width, step):
        count = analysis.position_count[start : start + step]
        total = int(count.sum())
        weighted = np.where(count > 0, analysis.position_mean[start : start + step], 0) @ count
        stop = min(start + step, width) - 1
        label = f"{start}" if start == stop else f"{start}-{stop}"
        table.add_row(label, f"{total:,}", _number(float(weighted) / total if total else None))
    return table


def _sample_table(steps: tuple[StepAnalysis, ...]) -> Table:
    table = _table("Samples with the largest mean", ("step", "row", "key", "tokens", "mean", "max"))
    for step, row in _worst_samples(steps):
        key = "" if step.keys is None else step.keys[row]
        numbers = (_number(float(step.sample_mean[row])), _number(float(step.sample_max[row])))
        table.add_row(
            cell(step.name.label.removeprefix("step ")), str(row), cell(key), f"{step.sample_count[row]:,}", *numbers
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("", "step", "key") else "right")
    return table


def _worst_samples(steps: tuple[StepAnalysis, ...]) -> list[tuple[StepAnalysis, int]]:
    worst: list[tuple[float, int, int]] = []
    for index, step in enumerate(steps):
        rows = np.flatnonzero(step.sample_count)
        top = rows[np.argsort(-step.sample_mean[rows], kind="stable")][:_SHOWN_SAMPLES]
        worst += [(-float(step.sample_mean[row]), index, int(row)) for row in top]
    return [(steps[index], row) for _, index, row in sorted(worst)[:_SHOWN_SAMPLES]]


def _thin(steps: list[StepAnalysis], limit: int) -> list[StepAnalysis | None]:
    if len(steps) <= limit:
        return list(steps)
    return [*steps[: limit // 2], None, *steps[-limit // 2 :]]


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.6f}" if value >= 1e-3 else f"{value:.3g}"


def _as_json(analysis: Analysis) -> dict[str, Any]:
    return {
        "folder": str(analysis.folder),
        "summary": _summary_json(analysis.summary),
        "steps": [
            {
                "step": None if step.name.step < 0 else step.name.step,
                "sub_step": step.name.sub_step,
                "attempt": step.name.attempt,
                "shape": list(step.shape),
                **_summary_json(step.summary),
                "samples": {
                    "keys": None if step.keys is None else list(step.keys),
                    "count": step.sample_count.tolist(),
                    "mean": _finite(step.sample_mean.tolist()),
                    "max": _finite(step.sample_max.tolist()),
                },
            }
            for step in analysis.steps
        ],
        "positions": {"count": analysis.position_count.tolist(), "mean": _finite(analysis.position_mean.tolist())},
        "nonzero_outside_mask": analysis.leaked,
        "superseded_attempts": len(analysis.superseded),
    }


def _summary_json(summary: Summary) -> dict[str, Any]:
    moments = summary.moments
    return {
        "count": moments.count,
        "not_finite": summary.not_finite,
        "mean": moments.mean if moments.count else None,
        "std": moments.std,
        "min": moments.minimum if moments.count else None,
        "max": moments.maximum if moments.count else None,
        "percentiles": {f"{percent:g}": value for percent, value in summary.percentiles.items()},
    }


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


__all__ = ["analyze"]
