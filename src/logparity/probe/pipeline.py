"""What happens to a call after it was captured: measured, kept, watched, written. Runs on one thread."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from logparity.probe.alarms.rules import Severity
from logparity.probe.alarms.tell import tell
from logparity.probe.alarms.watch import Alarm, AlarmWatch
from logparity.probe.config import ProbeConfig
from logparity.probe.metrics.walk import Walker
from logparity.probe.npy_files import PairName, write_pair
from logparity.probe.prob_diff import grid, prob_diff
from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.snapshot.call import Call
from logparity.probe.store.schemas import Tier
from logparity.probe.store.summary import summary_table
from logparity.probe.store.tokens import FlightRecorder
from logparity.probe.store.writer import RankWriter
from logparity.probe.unit import OpenUnit, padded_pairs

logger = logging.getLogger("logparity.probe")


class Pipeline:
    """Adds calls to units, and completes a unit when a call of another one comes.

    Args:
        config: of the probe.
        run_id: of the run.
    """

    def __init__(self, config: ProbeConfig, run_id: str) -> None:
        self._config, self._run_id = config, run_id
        self._walker = Walker()
        self._watch = AlarmWatch(config.alarms.all_rules)
        self._recorder = FlightRecorder(config.store.recorder_units, config.store.recorder_bytes)
        self._writer: RankWriter | None = None
        if config.run_dir is not None:
            self._writer = RankWriter(config.run_dir, config.rank, run_id, config.store)
        self._save_dir = config.save_dir if config.rank == 0 else None
        self._unit: OpenUnit | None = None
        self._grid: dict[str, float] = {}
        self._calls_of_step = (-1, 0)
        self._said: set[str] = set()
        self.unwritten = 0
        self.completed: deque[dict[str, float]] = deque(maxlen=8)
        self.begun: deque[Alarm] = deque(maxlen=64)

    def call(self, call: Call, dropped_before: int = 0) -> None:
        """Add a call to its unit.

        Args:
            call: what was captured.
            dropped_before: calls lost between the last one and this.

        Raises:
            InputError: its arguments do not belong together.
        """
        if self._unit is not None and (self._unit.step, self._unit.sub_step) != (call.step, call.sub_step):
            self.finish()
        batch = call.assemble({**self._config.labels, "rank": str(self._config.rank)})
        if self._unit is None:
            self._unit, self._grid = OpenUnit(call.step, call.sub_step, self._config), {}
        self._unit.dropped_calls += dropped_before
        self._part_a(self._unit.add(batch, self._walker), call)

    def so_far(self) -> dict[str, float]:
        """Metrics of the open unit."""
        if self._unit is None:
            return {}
        return _finite({**self._grid, **self._unit.values(), "probe/metrics_step": float(self._unit.step)})

    def finish(self) -> None:
        """Complete the open unit: alarms, files, metrics."""
        unit, self._unit = self._unit, None
        if unit is None:
            return
        values = unit.values()
        if unit.dropped_calls:
            values["probe/dropped_calls_of_step"] = float(unit.dropped_calls)
        begun = self._watch.look(unit.step, unit.sub_step, values)
        values |= {f"probe/alarm/{name}": 1.0 for name in sorted(self._watch.met)}
        values["probe/alarms"] = float(len(self._watch.met))
        self._store(unit, values, begun)
        for alarm in begun:
            self._alarm(alarm, values, unit)
        self.begun.extend(begun)
        if self.unwritten:
            values["probe/unwritten_units"] = float(self.unwritten)
        values["probe/metrics_step"] = float(unit.step)
        if unit.sub_step:
            values["probe/metrics_sub_step"] = float(unit.sub_step)
        self.completed.append(_finite({**self._grid, **values}))

    def close(self) -> None:
        """Complete the open unit and let the folder go."""
        self.finish()
        if self._writer is not None:
            self._writer.close()

    def _part_a(self, batch: CapturedBatch, call: Call) -> None:
        step, calls = self._calls_of_step
        calls = calls + 1 if step == call.step else 0
        self._calls_of_step = (call.step, calls)
        wants_grid = not self._grid and self._config.token_max_print and self._config.sample_max_print
        if self._save_dir is None and not wants_grid:
            return
        pairs = padded_pairs(batch)
        diff = prob_diff(pairs)
        if wants_grid:
            self._grid = grid(diff, pairs.mask, self._config.token_max_print, self._config.sample_max_print)
        if self._save_dir is not None:
            try:
                write_pair(self._save_dir, PairName.of(call.step, call.sub_step or calls), diff, pairs.mask, pairs.keys)
            except OSError as error:
                if self._config.strict:
                    raise
                self._say("pairs", f"cannot write to {self._save_dir} ({error}); no more .npy files, metrics go on")
                self._save_dir = None

    def _store(self, unit: OpenUnit, values: dict[str, float], begun: Sequence[Alarm]) -> None:
        if self._config.run_dir is None:
            return
        if self._writer is None:
            self.unwritten += 1
            return
        try:
            self._write(self._writer, unit, values, begun)
        except Exception as error:  # whatever it is, the metrics of the unit are still wanted
            if self._config.strict:
                raise
            self.unwritten += 1
            self._say("store", f"cannot write to {self._config.run_dir} ({error}); the writer is off, metrics go on")
            self._writer.close()
            self._writer = None

    def _write(self, writer: RankWriter, unit: OpenUnit, values: dict[str, float], begun: Sequence[Alarm]) -> None:
        where, store = writer.where(unit.step, unit.sub_step), self._config.store
        met = sorted(self._watch.met)
        tables = {Tier.SUMMARY: summary_table(unit.metrics, where, self._run_id, values, met)}
        kept = {
            Tier.WORST: unit.worst.table(where, store.decode),
            Tier.SAMPLES: unit.samples.table(where, store.decode),
        }
        tables |= {tier: table for tier, table in kept.items() if table.num_rows}
        tokens = unit.tokens(where)
        if tokens is not None and unit.keeps_tokens:
            tables[Tier.TOKENS] = tokens
        seq = writer.write(unit.step, unit.sub_step, tables, {"alarms": met, "dropped_calls": unit.dropped_calls})
        if tokens is not None:
            self._recorder.keep(seq, tokens)
        if any(alarm.severity is Severity.PROBLEM for alarm in begun):
            for kept_seq, recorded in self._recorder.take():
                writer.add(kept_seq, Tier.TOKENS, recorded)

    def _alarm(self, alarm: Alarm, values: dict[str, float], unit: OpenUnit) -> None:
        evidence: dict[str, Any] = {
            "alarm": alarm.as_dict(),
            "sentence": alarm.sentence,
            "run_id": self._run_id,
            "rank": self._config.rank,
            "metrics": _finite(values),
            "census": unit.metrics.census.to_json(),
            "worst_sequences": unit.metrics.sequences.to_json()["worst"],
        }
        failures = tell(alarm, evidence, self._config.alarms)
        if self._writer is None:
            return
        try:
            self._writer.record_alarm(json.dumps({**evidence, "not_told": failures}))
        except OSError as error:
            self._say("alarm", f"evidence not written ({error})")

    def _say(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.warning("Probe: %s.", message)


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if np.isfinite(value)}


__all__ = ["Pipeline"]
