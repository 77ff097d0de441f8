"""The probe inside a training loop: one call per batch, which never harms the run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from logparity.probe.config import ProbeConfig
from logparity.probe.log_metrics import log_space_metrics
from logparity.probe.npy_files import PairName, write_pair
from logparity.probe.pairs import TokenPairs
from logparity.probe.prob_diff import grid, prob_diff
from logparity.probe.prob_metrics import ProbAggregates
from logparity.records import FloatArray, Rollout, ScoredTokens

logger = logging.getLogger("logparity.probe")


class TokenProbe:
    """Compares every batch of a run, writes its files, and returns its metrics.

    Outside ``config.strict`` nothing is raised: a batch that cannot be compared gives no metrics but
    ``probe/failed_batches``, a folder that cannot be written to turns the writer off; each is said once.

    Args:
        config: what to do; disabled, `observe` returns at once.
    """

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config
        self._save_dir: Path | None = config.save_dir
        self._unwritten = 0
        self._failed = 0
        self._said: set[str] = set()
        self._last_step: int | None = None
        self._calls_in_step = 0

    def observe(
        self,
        rollouts: Sequence[Rollout],
        scored: ScoredTokens,
        *,
        step: int,
        sub_step: int | None = None,
        attempt: int | None = None,
    ) -> dict[str, float]:
        """Compare one batch.

        Args:
            rollouts: what the engine sampled.
            scored: the trainer's log-probs of the same responses under the weights before the update, matched by key.
            step: training step.
            sub_step: optimisation sub-step within it; None counts the calls of this step.
            attempt: how often the step has been run, from 1; None takes the first free file name.

        Returns:
            The grid, verl's aggregates, and ``mismatch/*``, finite values only; empty when disabled.

        Raises:
            InputError: in strict mode, the two sides do not belong together.
            OSError: in strict mode, the files cannot be written.
        """
        if not self.config.enabled:
            return {}
        self._calls_in_step = self._calls_in_step + 1 if step == self._last_step else 0
        self._last_step = step
        try:
            name = PairName.of(step, self._calls_in_step if sub_step is None else sub_step, attempt)
            return self._compare(TokenPairs.from_rollouts(rollouts, scored), name)
        except Exception as error:  # a monitor that stops the run it watches is worse than none
            if self.config.strict:
                raise
            self._failed += 1
            self._say(
                "failed", f"batch of step {step} not compared ({type(error).__name__}: {error}); training goes on"
            )
            return {"probe/failed_batches": float(self._failed)}

    def _compare(self, pairs: TokenPairs, name: PairName) -> dict[str, float]:
        diff = prob_diff(pairs)
        self._write(pairs, diff, name)
        aggregates = ProbAggregates.of(pairs, diff)
        if reason := aggregates.undefined():
            self._say("undefined", reason)
        if aggregates.excluded:
            self._say(
                "excluded",
                f"{aggregates.excluded} active tokens have no finite probability; they are left out and counted",
            )
        metrics = {
            **grid(diff, pairs.mask, self.config.token_max_print, self.config.sample_max_print),
            **aggregates.metrics(),
            **_tail(diff, pairs),
            **log_space_metrics(pairs),
        }
        if self._unwritten:
            metrics["probe/unwritten_files"] = float(self._unwritten)
        return {key: value for key, value in metrics.items() if np.isfinite(value)}

    def _write(self, pairs: TokenPairs, diff: FloatArray, name: PairName) -> None:
        if self.config.save_dir is None:
            return
        if self._save_dir is None:
            self._unwritten += 1
            return
        try:
            write_pair(self._save_dir, name, diff, pairs.mask, keys=pairs.keys)
        except OSError as error:
            if self.config.strict:
                raise
            self._unwritten += 1
            self._say("unwritten", f"cannot write to {self._save_dir} ({error}); no more files, metrics go on")
            self._save_dir = None

    def _say(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.warning("Token-level comparison: %s.", message)


def _tail(diff: FloatArray, pairs: TokenPairs) -> dict[str, float]:
    values = diff[pairs.mask]
    values = values[np.isfinite(values)]
    return {"mismatch/prob_diff_p99": float(np.quantile(values, 0.99))} if values.size else {}


__all__ = ["TokenProbe"]
