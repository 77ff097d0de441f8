"""The report page: gathers figures and tables, fills the template, writes one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from logparity.errors import InputError, RunFolderError
from logparity.probe.atomic import atomic_file
from logparity.probe.rollout_store import StoredRollout, read_rollouts
from logparity.report import figures
from logparity.report.embed import csp_hash, escape_json, packed
from logparity.report.glossary import GLOSSARY
from logparity.report.headlines import headlines, reading
from logparity.report.numbers import number
from logparity.report.run_folder import RunFolder, read_run
from logparity.report.token_survey import TokenSurvey, survey_tokens
from logparity.report.visible_text import visible

_GRID_KEY = "training/rollout_probs_diff/"


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run as one HTML file that opens from disk, without a network.

    Args:
        run_folder: holds ``metrics.jsonl``, ``prob_diff/*.npy``, ``rollouts/*.parquet``, ``config.json``, or some of
            them; the page names what is missing.
        out: the file; by default ``report.html`` in the run folder. An existing file is replaced.

    Returns:
        The file.

    Raises:
        InputError: the folder is missing or holds nothing to report.
        RunFolderError: the file cannot be written.
    """
    folder = Path(run_folder)
    run = read_run(folder)
    notes = list(run.notes)
    survey = survey_tokens(_stored(run, notes))
    path = Path(out) if out is not None else folder / "report.html"
    html = _render(run, survey, notes)
    try:
        with atomic_file(path) as file:
            file.write(html.encode("utf-8", errors="replace"))
    except OSError as error:
        raise RunFolderError(f"{path}: expected a place to write the report to, got {error}.") from error
    return path


def _stored(run: RunFolder, notes: list[str]) -> Iterator[StoredRollout]:
    for path in run.rollouts:
        try:
            yield from read_rollouts(path)
        except InputError as error:  # a damaged file costs its own rows only
            notes.append(f"rollouts/{error}")


def _render(run: RunFolder, survey: TokenSurvey, notes: list[str]) -> str:
    drawn = {
        "reward": figures.reward_figure(run),
        "mismatch": figures.mismatch_figure(run),
        "agreement": figures.agreement_figure(survey),
        "position": figures.position_figure(run.analysis),
        "map": figures.token_map_figure(run.analysis),
    }
    environment = Environment(
        loader=PackageLoader("logparity.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"number": number, "visible": visible}
    templates = files("logparity.report") / "templates"
    plotly, script = get_plotlyjs(), (templates / "page.js").read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(
        name=visible(run.path.resolve().name),
        subtitle=_subtitle(run, survey),
        headlines=headlines(run, survey),
        reading=reading(run),
        notes=[visible(note) for note in notes],
        drawn={name: figure is not None for name, figure in drawn.items()},
        map_note=figures.token_map_note(run.analysis) if run.analysis else "",
        survey=survey,
        settings={visible(key): visible(value) for key, value in {**_from_rollouts(survey), **run.config}.items()},
        last_metrics=_last_metrics(run),
        glossary=GLOSSARY,
        figures=escape_json(_json(drawn)),
        plotly=packed(plotly),
        style=(templates / "style.css").read_text(encoding="utf-8"),
        script=script,
        script_sources=f"{csp_hash(script)} {csp_hash(plotly)}",
    )


def _json(drawn: Mapping[str, go.Figure | None]) -> str:
    parts = [f'"{name}":{figure.to_json()}' for name, figure in drawn.items() if figure is not None]
    return "{" + ",".join(parts) + "}"


def _subtitle(run: RunFolder, survey: TokenSurvey) -> str:
    steps = len(run.metrics) or (len(run.analysis.steps) if run.analysis else 0)
    parts = [f"{steps:,} step{'s' if steps != 1 else ''}"] if steps else []
    if survey.sequences:
        parts.append(f"{survey.sequences:,} responses")
    return " · ".join([*parts, *sorted(visible(engine) for engine in survey.engines)])


def _from_rollouts(survey: TokenSurvey) -> dict[str, str]:
    rows = {"rollout engine": "; ".join(sorted(survey.engines))} if survey.engines else {}
    for index, sampling in enumerate(sorted(survey.samplings, key=repr)):
        name = "sampling" if not index else f"sampling {index + 1}"
        rows[name] = (
            f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}, top-k {sampling.top_k}, "
            f"min-p {sampling.min_p:g}, at most {sampling.max_new_tokens} tokens"
        )
    if survey.sequences:
        rows["stale responses"] = f"{survey.stale_sequences:,} of {survey.sequences:,} sampled under older weights"
    return rows


def _last_metrics(run: RunFolder) -> dict[str, str]:
    if not run.metrics:
        return {}
    last = run.metrics[-1]
    return {visible(key): number(value) for key, value in last.items() if not key.startswith(_GRID_KEY)}


__all__ = ["write_report"]
