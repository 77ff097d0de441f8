"""The training loop: open the run, go on where it stopped, take its steps, keep checkpoints, write the report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from logparity.report import write_report
from logparity.training.assemble import Parts, assemble
from logparity.training.checkpoint import Stateful, list_checkpoints, load_checkpoint, save_checkpoint
from logparity.training.config import TrainConfig
from logparity.training.interrupt import stop_on_signal
from logparity.training.probe_folder import require_own_folder
from logparity.training.run_folder import (
    Existing,
    RunFolder,
    check_run_folder,
    forget_replaced,
    open_run_folder,
    restore_replaced,
)
from logparity.training.sft_step import sft_step
from logparity.training.step import hand_over_weights, rl_step
from logparity.training.tracking import Trackers, open_trackers
from logparity.training.view import SilentView, View
from logparity.training.world import World, open_world


def run_training(config: TrainConfig, existing: Existing = Existing.REFUSE, view: View | None = None) -> bool:
    """Train until the configured step; under ``torchrun`` every rank calls it.

    Args:
        config: resolved configuration.
        existing: what to do with a run folder that exists.
        view: told about progress, by the driver.

    Returns:
        True if the last step was reached, False if a signal stopped the run after a checkpoint.

    Raises:
        LogparityError: a part of the configuration cannot be used, or the run failed; says what to change.
    """
    with open_world(config.actor.backend) as world:
        return _run(config, world, existing, view if view is not None and world.is_driver else SilentView())


def _run(config: TrainConfig, world: World, existing: Existing, view: View) -> bool:
    resolved = config.model_dump(mode="json")
    world.share(lambda: _check(config, resolved, existing))
    parts = assemble(config, world, view)
    run = world.share(lambda: open_run_folder(config.run.folder, resolved, existing))
    try:
        last_step = _restore(run, parts)
        hand_over_weights(parts)
        with _trackers(config, resolved, world, run, last_step) as trackers:
            view.start(run.root, last_step + 1, config.run.steps)
            finished = _take_steps(config, world, run, parts, trackers, view, last_step)
    finally:
        if world.is_driver:
            restore_replaced(run)
    if config.run.report and world.is_driver:
        view.message(f"report: {write_report(run.root)}")
    return finished


def _check(config: TrainConfig, resolved: dict[str, Any], existing: Existing) -> None:
    check_run_folder(config.run.folder, resolved, existing)
    if existing is not Existing.RESUME:
        require_own_folder(config)


@contextmanager
def _trackers(
    config: TrainConfig, resolved: dict[str, Any], world: World, run: RunFolder, last_step: int
) -> Iterator[Trackers]:
    """The driver's trackers; other ranks have none."""
    trackers = Trackers([])
    if world.is_driver:
        trackers = open_trackers(config.tracking, run.root, run.metrics, last_step, resolved)
        _note_start(run, last_step)
    try:
        yield trackers
    finally:
        trackers.close()


def _take_steps(
    config: TrainConfig, world: World, run: RunFolder, parts: Parts, trackers: Trackers, view: View, last_step: int
) -> bool:
    take = sft_step if config.algorithm.name == "sft" else rl_step
    with stop_on_signal(view.message) as stop:
        for step in range(last_step + 1, config.run.steps + 1):
            metrics = take(config, world, parts, run, view, step)
            trackers.log(step, metrics)
            view.step(step, metrics)
            if world.is_driver:
                forget_replaced(run)
            stopping = world.share(lambda: stop.requested)
            if step % config.run.checkpoint_every == 0 or step == config.run.steps or stopping:
                save_checkpoint(run.checkpoints, step, _states(parts), config.run.keep_checkpoints, world)
            if stopping and step < config.run.steps:
                view.message(f"stopped after step {step}: go on with --resume")
                return False
    return True


def _states(parts: Parts) -> dict[str, Stateful]:
    return {"actor": parts.actor} | ({} if parts.critic is None else {"critic": parts.critic})


def _restore(run: RunFolder, parts: Parts) -> int:
    """Take over the newest checkpoint; returns its step, 0 where there is none."""
    checkpoints = list_checkpoints(run.checkpoints)
    return load_checkpoint(checkpoints[-1], _states(parts)) if checkpoints else 0


def _note_start(run: RunFolder, last_step: int) -> None:
    """Leave a line about this start of the run."""
    with (run.root / "attempts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"resumed_after_step": last_step, "unix_time": time.time()}) + "\n")
