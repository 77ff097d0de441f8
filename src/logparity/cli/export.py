"""``logparity export``: a run of the probe in the formats of other tools."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from logparity.cli.plain_text import plain
from logparity.probe.store.export import Export, export_run
from logparity.probe.store.reader import open_run


def export(run: Path, out: Path, *, what: Export = Export.METRICS) -> int:
    """Write a part of the probe's run folder as CSV, JSON lines, npz, or plain .npy pairs.

    The store itself is Parquet: DuckDB, Polars, Spark and Ray Data read RUN/rank-*/attempt-*/summary-*.parquet (and
    worst-, samples-, tokens-) as they are. This command is for everything else. `tokens` and `pairs` need steps whose
    tokens were kept (StoreConfig.tokens_every, or the flight recorder after an alarm).

    Examples: `logparity export runs/x/probe metrics.csv`, `logparity export runs/x/probe pairs --what pairs`.

    Args:
        run: the probe's run_dir.
        out: a .csv or .jsonl file for tables, a folder for arrays (.npz per step; .npy pairs).
        what: the part.

    Returns:
        Exit code 0; bad input raises and ends in exit code 2.
    """
    opened = open_run(run)
    count = export_run(opened, what, out)
    console = Console()
    for note in opened.notes:
        console.print(f"! {plain(note)}", style="yellow", markup=False, highlight=False)
    unit = "rows" if out.suffix in (".csv", ".jsonl") else "steps"
    console.print(f"{count:,} {unit}: {plain(out)}", markup=False, highlight=False, soft_wrap=True)
    return 0


__all__ = ["export"]
