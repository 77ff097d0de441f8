"""A run as measurements by step, whether a store or the dumps of another tool gave them: what analyses look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from logparity.probe.metrics.catalog import metrics_of
from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.metrics.walk import Walker
from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.store.reader import ProbeRun
from logparity.probe.store.worst import WorstTokens

_WORST = 32


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step.

    Args:
        step: training step; None where nobody said.
        label: for people.
        measured: its measurements.
        alarms: rules that it met.
    """

    step: int | None
    label: str
    measured: UnitMetrics
    alarms: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """Finite values by key."""
        return metrics_of(self.measured)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """All steps of a run.

    Args:
        name: of the run, for titles.
        steps: in order.
        whole: all of them merged.
        worst: tokens with the largest ``|log_ratio|``, as rows of T1.
        alarms: sentences, in order of time.
        notes: what was skipped or assumed, for people.
    """

    name: str
    steps: tuple[MeasuredStep, ...]
    whole: UnitMetrics
    worst: tuple[dict[str, Any], ...]
    alarms: tuple[str, ...]
    notes: tuple[str, ...]


def measured_run(run: ProbeRun) -> MeasuredRun:
    """A store's run, merged over ranks."""
    steps = tuple(
        MeasuredStep(
            found.step,
            found.label,
            found.measured,
            tuple(sorted({alarm for unit in found.units for alarm in unit.alarms})),
        )
        for found in run.steps
    )
    worst = tuple(run.worst_tokens(_WORST))
    dropped = sum(unit.dropped_calls for unit in run.units)
    notes = [f"{dropped:,} calls were dropped: the writer was slower than the trainer"] if dropped else []
    sentences = tuple(str(row.get("sentence", "")) for row in run.alarms())
    return MeasuredRun(run.path.resolve().name, steps, run.whole, worst, sentences, (*notes, *run.notes))


def measure_batches(name: str, batches: Iterable[tuple[int | None, CapturedBatch]], notes: list[str]) -> MeasuredRun:
    """Measure batches that something else has kept.

    Args:
        name: for titles.
        batches: training step and rows; batches of one step add up.
        notes: for people; may grow while the batches are read.

    Returns:
        The run.

    Memory: one batch at a time.
    """
    walker, whole, worst = Walker(), UnitMetrics(), WorstTokens(_WORST, 8)
    units: dict[int | None, UnitMetrics] = {}
    for step, batch in batches:
        walker.add(units.setdefault(step, UnitMetrics()), batch, [worst])
    for unit in units.values():
        whole.merge(unit)
    ordered = sorted(units.items(), key=lambda item: -1 if item[0] is None else item[0])
    steps = tuple(MeasuredStep(step, "one batch" if step is None else f"step {step}", unit) for step, unit in ordered)
    rows = worst.table({"step": -1, "sub_step": 0, "rank": 0, "attempt": 1}, None).to_pylist()
    return MeasuredRun(name, steps, whole, tuple(rows[:_WORST]), (), tuple(notes))


__all__ = ["MeasuredRun", "MeasuredStep", "measure_batches", "measured_run"]
