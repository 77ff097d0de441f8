"""One batch of a host trainer, compared without any way to hurt the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from logparity.probe.config import ProbeConfig
from logparity.probe.monitor import Probe
from logparity.probe.pairs import TokenPairs

Result = TypeVar("Result")

LATE_FROM: Final = 1 << 19
"""Token slots of a step from which it is measured on a thread: fewer take less than 50 ms of a core."""


@dataclass(frozen=True, slots=True)
class HostBatch:
    """What a host has of one step.

    Args:
        pairs: the two sides.
        entropy: of the trainer's distribution ``[B, R]``, nats; None where the host has none.
        token_ids: of the responses ``[B, R]``; None where the host has none.
    """

    pairs: TokenPairs
    entropy: Any = None
    token_ids: Any = None


class StepProbe:
    """Compares each step of a host as one unit, and returns its metrics in the same call.

    A host logs a step's metrics when the step ends, so nothing is put off to a thread, unless the first step has more
    than `LATE_FROM` token slots: then the host waits for a copy only, metrics come with the next step's, and
    ``probe/metrics_step`` and ``probe/steps_late`` say so. Outside ``config.strict`` nothing is raised: what goes wrong
    is said once in the log, counted in ``probe/failed_batches``, and training goes on.

    Args:
        config: what to do.
        logger: the host integration's own.
    """

    def __init__(self, config: ProbeConfig, logger: logging.Logger) -> None:
        self.config = config
        self._probe: Probe | None = None
        self._logger = logger
        self._failed = 0
        self._said: set[str] = set()

    def observe(self, batch: Callable[[], HostBatch], *, step: int, sub_step: int = 0) -> dict[str, float]:
        """Compare one batch.

        Args:
            batch: makes the two sides out of the host's batch; what it raises counts as a failed batch.
            step: training step.
            sub_step: optimisation sub-step within it, from 0.

        Returns:
            The grid, verl's aggregates, and all metrics of `Probe`, finite values only. Those of a later sub-step have
            ``sub{k}`` in their names: a host that averages names over sub-steps must not mix their samples.

        Raises:
            Exception: in strict mode, whatever went wrong.
        """
        metrics = self.guard(lambda: self._compare(batch(), step, sub_step), f"batch of step {step}") or {}
        if "probe/steps_late" in metrics:  # they are of another sub-step, too
            sub_step = int(metrics.get("probe/metrics_sub_step", 0))
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

    def _compare(self, batch: HostBatch, step: int, sub_step: int) -> dict[str, float]:
        pairs = batch.pairs
        if pairs.mask_name == "attention_mask":
            self.say("mask", "no response_mask, attention_mask serves: tokens that a tool wrote count as the policy's")
        probe = self._probe_for(pairs)
        metrics = probe.observe(
            step=step,
            sub_step=sub_step,
            rollout_log_probs=pairs.rollout_log_probs,
            old_log_probs=pairs.old_log_probs,
            response_mask=pairs.mask,
            token_ids=batch.token_ids,
            entropy=batch.entropy,
            keys=pairs.keys,
        )
        if not probe.config.background:
            return probe.flush()
        probe.complete()
        return metrics

    def _probe_for(self, pairs: TokenPairs) -> Probe:
        if self._probe is None:
            late = pairs.mask.size > LATE_FROM and not self.config.strict
            self._probe = Probe(replace(self.config, background=late))
            if late:
                self._logger.info(
                    "logparity: %d token slots a step are measured on a thread: metrics come one step later, and "
                    "probe/metrics_step says whose they are.",
                    pairs.mask.size,
                )
        return self._probe


def _within(name: str, sub_step: int) -> str:
    group, _, rest = name.rpartition("/")
    separator = "_" if group == "training/rollout_probs_diff" else "/"
    return f"{group}/sub{sub_step}{separator}{rest}"


__all__ = ["HostBatch", "StepProbe"]
