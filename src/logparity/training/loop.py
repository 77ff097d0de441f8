"""The training loop: open the run, go on where it stopped, take its steps, keep checkpoints, write the report."""

from __future__ import annotations

import json
import time

from logparity.report import write_report
from logparity.training.assemble import Parts, assemble
from logparity.training.checkpoint import Stateful, list_checkpoints, load_checkpoint, save_checkpoint
from logparity.training.config import TrainConfig
from logparity.training.interrupt import stop_on_signal
from logparity.training.run_folder import Existing, RunFolder, open_run_folder
from logparity.training.sft_step import sft_step
from logparity.training.step import rl_step
from logparity.training.tracking import Trackers, open_trackers
from logparity.training.view import SilentView, View


def run_training(config: TrainConfig, existing: Existing = Existing.REFUSE, view: View | None = None) -> bool:
    """Train until the configured step.

    Args:
        config: resolved configuration.
        existing: what to do with a run folder that exists.
        view: told about progress.

    Returns:
        True if the last step was reached, False if a signal stopped the run after a checkpoint.

    Raises:
        LogparityError: a part of the configuration cannot be used, or the run failed; says what to change.
    """
    view = view or SilentView()
    resolved = config.model_dump(mode="json")
    run = open_run_folder(config.run.folder, resolved, existing)
    parts = assemble(config, view)
    last_step = _restore(run, parts)
    if parts.engine is not None:
        parts.engine.update_weights(parts.actor.export_weights(), parts.actor.weight_version)
    trackers = open_trackers(config.tracking, run.root, run.metrics, last_step, resolved)
    try:
        view.start(run.root, last_step + 1, config.run.steps)
        finished = _take_steps(config, run, parts, trackers, view, last_step)
    finally:
        trackers.close()
    if config.run.report:
        view.message(f"report: {write_report(run.root)}")
    return finished


def _take_steps(
    config: TrainConfig, run: RunFolder, parts: Parts, trackers: Trackers, view: View, last_step: int
) -> bool:
    _note_attempt(run, last_step)
    with stop_on_signal() as stop:
        for step in range(last_step + 1, config.run.steps + 1):
            if parts.engine is None:
                metrics = sft_step(config, parts, view, step)
            else:
                metrics = rl_step(config, parts, parts.engine, run, view, step)
            trackers.log(step, metrics)
            view.step(step, metrics)
            if step % config.run.checkpoint_every == 0 or step == config.run.steps or stop.requested:
                save_checkpoint(run.checkpoints, step, _states(parts), config.run.keep_checkpoints)
            if stop.requested and step < config.run.steps:
                view.message(f"stopped after step {step}: go on with --resume")
                return False
    return True


def _states(parts: Parts) -> dict[str, Stateful]:
    return {"actor": parts.actor} | ({} if parts.critic is None else {"critic": parts.critic})


def _restore(run: RunFolder, parts: Parts) -> int:
    """Take over the newest checkpoint; returns its step, 0 where there is none."""
    checkpoints = list_checkpoints(run.checkpoints)
    return load_checkpoint(checkpoints[-1], _states(parts)) if checkpoints else 0


def _note_attempt(run: RunFolder, last_step: int) -> None:
    """Leave a line about this start of the run."""
    with (run.root / "attempts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"resumed_after_step": last_step, "unix_time": time.time()}) + "\n")
