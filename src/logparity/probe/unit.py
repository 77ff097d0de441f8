"""One unit in the making: a step and sub-step, to which calls add until the next one begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from logparity.probe.config import ProbeConfig
from logparity.probe.metrics.catalog import metrics_of
from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.metrics.walk import Walker
from logparity.probe.pairs import TokenPairs
from logparity.probe.prob_metrics import PEARSON, PREFIX
from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.store.samples import SampleReservoir
from logparity.probe.store.tokens import token_table
from logparity.probe.store.worst import WorstTokens

_PLACEHOLDER = {"rank": 0, "attempt": 0}


class OpenUnit:
    """Measurements and keepsakes of a unit while calls add to it.

    Args:
        step: training step.
        sub_step: within it.
        config: of the probe.
    """

    def __init__(self, step: int, sub_step: int, config: ProbeConfig) -> None:
        self.step, self.sub_step, self.config = step, sub_step, config
        self.metrics = UnitMetrics(config.group_limit)
        self.worst = WorstTokens(config.store.worst_tokens, config.store.context)
        self.samples = SampleReservoir(config.store.samples, f"{step}.{sub_step}")
        self._seen: set[str] = set()
        self._token_tables: list[pa.Table] = []
        self.dropped_calls = 0

    @property
    def keeps_tokens(self) -> bool:
        """Whether T3 is written for it anyway."""
        every = self.config.store.tokens_every
        return every > 0 and self.step % every == 0

    def add(self, batch: CapturedBatch, walker: Walker) -> CapturedBatch:
        """Add a call's tokens.

        Args:
            batch: the call's rows.
            walker: of this thread.

        Returns:
            The rows without those whose key came before in this unit.
        """
        if batch.keyed:
            batch = batch.without_seen(self._seen)
        store = self.config.store
        kept = self.config.run_dir is not None
        walker.add(self.metrics, batch, [self.worst] if kept else [])
        if kept:
            self.samples.see(batch)
            if self.keeps_tokens or store.recorder_units:
                where = {"step": self.step, "sub_step": self.sub_step, **_PLACEHOLDER}
                self._token_tables.append(token_table(batch, where, token_ids=store.token_ids))
        return batch

    def tokens(self, where: dict[str, int]) -> pa.Table | None:
        """T3 of the unit, with rank and attempt filled in; None where nothing was kept."""
        if not self._token_tables:
            return None
        table = pa.concat_tables(self._token_tables)
        for name, value in where.items():
            index = table.schema.get_field_index(name)
            column = pa.array([value] * table.num_rows, table.schema.field(name).type)
            table = table.set_column(index, table.schema.field(name), column)
        return table

    def values(self) -> dict[str, float]:
        """Its metrics so far, verl's names for the plain comparison among them."""
        values: dict[str, Any] = metrics_of(self.metrics)
        aliases = {
            f"{PREFIX}_mean": "mismatch/prob_diff_mean",
            f"{PREFIX}_max": "mismatch/prob_diff_max",
            f"{PREFIX}_std": "mismatch/prob_diff_std",
            PEARSON: "mismatch/prob_pearson",
        }
        values |= {alias: values[key] for alias, key in aliases.items() if key in values}
        values[f"{PREFIX}_valid"] = float(self.metrics.tokens.counts["tokens"] > 0)
        return values


def padded_pairs(batch: CapturedBatch) -> TokenPairs:
    """A batch as padded pairs, for the grid and the ``.npy`` files."""
    width = int(batch.lengths.max(initial=0))
    inside = np.arange(width) < batch.lengths[:, None]
    rollout, train = (np.zeros(inside.shape, np.float32) for _ in range(2))
    mask = np.zeros(inside.shape, np.bool_)
    rollout[inside], train[inside], mask[inside] = batch.rollout, batch.train, batch.mask
    return TokenPairs(rollout, train, mask, batch.keys if batch.keyed else None)


__all__ = ["OpenUnit", "padded_pairs"]
