"""``logparity report``: one HTML page from a run folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from logparity.cli.plain_text import plain


def report(run: Path, *, out: Path | None = None) -> int:
    """Draw the report of a run: one HTML file that opens from disk, without a network.

    It shows reward and mismatch by step, the two probabilities of every token against each other, the difference by
    response position and by sample, the tokens that differ most with their text, and the run's settings. What a run
    folder lacks is named on the page.

    Example: `logparity report runs/demo`.

    Args:
        run: run folder with metrics.jsonl, prob_diff/, rollouts/, config.json, or some of them.
        out: file to write; by default report.html in the run folder.

    Returns:
        Exit code 0; a folder that holds nothing to report raises and ends in exit code 2.
    """
    from logparity.report import write_report

    path = write_report(run, out)
    Console().print(f"Report: {plain(path)}", markup=False, highlight=False, soft_wrap=True)
    return 0


__all__ = ["report"]
