"""A training run in the terminal: one line a step, and a bar for the step that is under way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_COLUMNS = (
    ("reward", "reward/mean", "7.4f"),
    ("mean |dp|", "training/rollout_probs_diff_mean", "9.2e"),
    ("max |dp|", "training/rollout_probs_diff_max", "9.2e"),
    ("k3", "mismatch/k3", "9.2e"),
    ("loss", "actor/loss", "8.4f"),
    ("grad", "actor/grad_norm", "7.3f"),
    ("tok/s", "perf/tokens_per_second", "6.0f"),
)


class TerminalView:
    """Shows a run on a terminal; in a log file only the finished steps appear."""

    def __init__(self) -> None:
        self._console = Console(markup=False, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._steps = 0

    def __enter__(self) -> TerminalView:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, folder: Path, first_step: int, steps: int) -> None:
        """Print the heading."""
        self._steps = steps
        if first_step > steps:
            self._console.print(f"run folder {folder}: all {steps} steps are taken; set run.steps to go on")
            return
        self._console.print(f"run folder {folder}, steps {first_step} to {steps}", soft_wrap=True)
        self._console.print(
            "  step " + " ".join(f"{name:>9}" for name, _, _ in _COLUMNS) + "   seconds", soft_wrap=True
        )

    def stage(self, step: int, name: str, done: int, total: int) -> None:
        """Move the bar."""
        if self._task is None:
            self._task = self._progress.add_task("", total=total)
        self._progress.update(
            self._task, description=f"step {step}/{self._steps} {name:<8}", completed=done, total=total
        )

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a finished step as one line."""
        cells = (f"{metrics[key]:{spec}}" if key in metrics else "-" for _, key, spec in _COLUMNS)
        seconds = sum(value for key, value in metrics.items() if key.startswith("timing_s/"))
        self._console.print(
            f"{step:>6} " + " ".join(f"{cell:>9}" for cell in cells) + f" {seconds:>9.1f}", soft_wrap=True
        )

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, soft_wrap=True)
