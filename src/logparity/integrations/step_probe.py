"""One batch of a host trainer, compared without any way to hurt the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from logparity.probe.config import ProbeConfig
from logparity.probe.monitor import Probe
from logparity.probe.pairs import TokenPairs

Result = TypeVar("Result")


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

    A host logs a step's metrics when the step ends, so nothing is put off to a thread. Outside ``config.strict``
    nothing is raised: what goes wrong is said once in the log, counted in ``probe/failed_batches``, and training goes
    on.

    Args:
        config: what to do.
        logger: the host integration's own.
    """

    def __init__(self, config: ProbeConfig, logger: logging.Logger) -> None:
        self.config = config
        self._probe = Probe(replace(config, background=False))
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
        self._probe.observe(
            step=step,
            sub_step=sub_step,
            rollout_log_probs=pairs.rollout_log_probs,
            old_log_probs=pairs.old_log_probs,
            response_mask=pairs.mask,
            token_ids=batch.token_ids,
            entropy=batch.entropy,
            keys=pairs.keys,
        )
        return self._probe.flush()


def _within(name: str, sub_step: int) -> str:
    group, _, rest = name.rpartition("/")
    separator = "_" if group == "training/rollout_probs_diff" else "/"
    return f"{group}/sub{sub_step}{separator}{rest}"


__all__ = ["HostBatch", "StepProbe"]
