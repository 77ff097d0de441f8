"""The hooks that the plug-in puts around verl's own functions; nothing in them can stop verl."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from logparity.integrations.verl_settings import enabled, misspelt, obstacles, settings

if TYPE_CHECKING:  # a run that leaves the comparison off does not pay for these imports
    from logparity.integrations.step_probe import StepProbe

Metrics = dict[str, Any]

logger = logging.getLogger("logparity.verl")

MARK = "wrapped_by_logparity"
"""Attribute of verl's metrics function once it is wrapped."""


class VerlHook:
    """Compares what verl's metrics function is called with, for every trainer whose configuration asks for it."""

    def __init__(self) -> None:
        self._probes: WeakKeyDictionary[Any, StepProbe] = WeakKeyDictionary()
        self._said: set[str] = set()

    def around_metrics(self, original: Callable[[Any], Metrics]) -> Callable[[Any], Metrics]:
        """Wrap ``calculate_debug_metrics``: verl's metrics as they were, ours added where they are switched on."""

        @functools.wraps(original)
        def calculate_debug_metrics(data: Any) -> Metrics:
            metrics = original(data)
            caller = sys._getframe(1)
            extra = self._quietly(lambda: self.observe(data, caller))
            # verl's own names keep verl's values.
            return {**extra, **metrics} if extra else metrics

        setattr(calculate_debug_metrics, MARK, True)
        return calculate_debug_metrics

    def around_tracking(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap the constructor of verl's ``Tracking``, the first to see a run's configuration in the driver."""

        @functools.wraps(original)
        def constructor(tracking: Any, *args: Any, **kwargs: Any) -> None:
            original(tracking, *args, **kwargs)
            config = kwargs.get("config", args[3] if len(args) > 3 else None)
            self._quietly(lambda: self.report(config))

        return constructor

    def observe(self, data: Any, frame: FrameType | None) -> Metrics:
        """Compare one batch.

        Args:
            data: what verl's function was given.
            frame: the frame that called it.

        Returns:
            Metrics to add; empty where the comparison is off.
        """
        from logparity.integrations.verl_batch import batch_of, find_caller, find_trainer

        found = find_trainer(frame)
        if found is None or not enabled(found[0].config):
            return {}
        trainer = found[0]
        return self._probe(trainer).observe(
            lambda: batch_of(data, find_caller(*found)),
            step=int(trainer.global_steps),
            sub_step=int(getattr(trainer, "local_trigger_step", 0) or 0),
        )

    def report(self, config: Any) -> None:
        """Say at the start of a run what will be done, or why nothing will."""
        for note in misspelt(config):
            self._warn(note)
        if not enabled(config):
            return
        asked = settings(config)
        if found := obstacles(config):
            self._warn(f"the token-level comparison has nothing to compare: {'; '.join(found)}.")
            return
        folders = [str(folder) for folder in (asked.save_dir, asked.run_dir) if folder]
        files = f"files in {' and '.join(folders)}" if folders else "no files"
        logger.info(
            "logparity: token-level comparison on, every step; grid of %d samples x %d positions, %s.",
            asked.sample_max_print,
            asked.token_max_print,
            files,
        )

    def _probe(self, trainer: Any) -> StepProbe:
        if trainer not in self._probes:
            from logparity.integrations.step_probe import StepProbe

            self._probes[trainer] = StepProbe(settings(trainer.config), logger)
        return self._probes[trainer]

    def _quietly(self, work: Callable[[], Metrics | None]) -> Metrics | None:
        try:
            return work()
        except Exception as error:  # whatever it is, verl goes on
            self._warn(f"token-level comparison failed ({type(error).__name__}: {error}); verl goes on.")
            return {"probe/failed_batches": 1.0}

    def _warn(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning("logparity: %s", message)


__all__ = ["MARK", "Metrics", "VerlHook", "logger"]
