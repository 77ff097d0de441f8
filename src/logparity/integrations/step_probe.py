"""One padded batch of a host trainer, compared without any way to hurt the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from logparity.probe.config import ProbeConfig
from logparity.probe.log_metrics import log_space_metrics
from logparity.probe.npy_files import PairName, write_pair
from logparity.probe.pairs import TokenPairs
from logparity.probe.prob_diff import grid, prob_diff
from logparity.probe.prob_metrics import ProbAggregates
from logparity.records import FloatArray

Result = TypeVar("Result")


class StepProbe:
    """Compares the batches that a host trainer hands over, writes their files, and returns their metrics.

    Outside ``config.strict`` nothing is raised: what goes wrong is said once in the log, counted in
    ``probe/failed_batches``, and training goes on. A folder that cannot be written to turns the writer off.

    Args:
        config: what to do.
        logger: the host integration's own.
    """

    def __init__(self, config: ProbeConfig, logger: logging.Logger) -> None:
        self.config = config
        self._logger = logger
        self._save_dir = config.save_dir
        self._failed = 0
        self._unwritten = 0
        self._said: set[str] = set()

    def observe(
        self, pairs: Callable[[], TokenPairs], *, step: int | None, sub_step: int | None = None
    ) -> dict[str, float]:
        """Compare one batch.

        Args:
            pairs: makes the two sides out of the host's batch; what it raises counts as a failed batch.
            step: training step; None where the host gives none.
            sub_step: optimisation sub-step within it, from 0.

        Returns:
            The grid, verl's aggregates, and ``mismatch/*``, finite values only. Those of a later sub-step have
            ``sub{k}`` in their names: a host that averages names over sub-steps must not mix their samples.

        Raises:
            Exception: in strict mode, whatever went wrong.
        """
        metrics = self.guard(lambda: self._compare(pairs(), PairName.of(step, sub_step)), f"batch of step {step}")
        metrics = {} if metrics is None else metrics
        if self._failed:
            metrics["probe/failed_batches"] = float(self._failed)
        return metrics if not sub_step else {_within(name, sub_step): value for name, value in metrics.items()}

    def guard(self, work: Callable[[], Result], what: str) -> Result | None:
        """Run something that must not stop the trainer; None where it failed."""
        try:
            return work()
        except Exception as error:  # a monitor that stops the run it watches is worse than none
            if self.config.strict:
                raise
            self._failed += 1
            self.say(
                f"failed {type(error).__name__}",
                f"{what} not compared ({type(error).__name__}: {error}); training goes on",
            )
            return None

    def say(self, kind: str, message: str) -> None:
        """Warn once of each kind."""
        if kind not in self._said:
            self._said.add(kind)
            self._logger.warning("logparity: %s.", message.rstrip("."))

    def _compare(self, pairs: TokenPairs, name: PairName) -> dict[str, float]:
        diff = prob_diff(pairs)
        self._write(pairs, diff, name)
        aggregates = ProbAggregates.of(pairs, diff)
        if reason := aggregates.undefined():
            self.say("undefined", reason)
        if aggregates.excluded:
            self.say("excluded", f"{aggregates.excluded} active tokens have no finite probability; left out, counted")
        if pairs.mask_name == "attention_mask":
            self.say("mask", "no response_mask, attention_mask serves: tokens that a tool wrote count as the policy's")
        metrics = {
            **grid(diff, pairs.mask, self.config.token_max_print, self.config.sample_max_print),
            **aggregates.metrics(),
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
            self.say("unwritten", f"cannot write to {self._save_dir} ({error}); no more files, metrics go on")
            self._save_dir = None


def _within(name: str, sub_step: int) -> str:
    group, _, rest = name.rpartition("/")
    separator = "_" if group == "training/rollout_probs_diff" else "/"
    return f"{group}/sub{sub_step}{separator}{rest}"


__all__ = ["StepProbe"]
