"""One supervised step: the task's answers, learned at temperature 1."""

from __future__ import annotations

import numpy as np

from logparity.records import TokenBatch, TrainingBatch
from logparity.training.assemble import Parts
from logparity.training.config import TrainConfig
from logparity.training.costs import Stopwatch
from logparity.training.mini_batches import mean_over_steps, mini_batches
from logparity.training.run_folder import RunFolder
from logparity.training.sampling import prompts_of_step
from logparity.training.view import View
from logparity.training.world import World


def sft_step(
    config: TrainConfig, _world: World, parts: Parts, _run: RunFolder, view: View, step: int
) -> dict[str, float]:
    """Learn ``rollout.prompts_per_step x rollout.group_size`` answers and return the step's metrics.

    Args:
        config: resolved configuration.
        _world: every rank draws the same examples by itself.
        parts: actor, tokenizer, and prompts with answers.
        _run: nothing but metrics is kept of a supervised step.
        view: told about progress.
        step: step number, from 1.

    Returns:
        Metrics by name.
    """
    clock = Stopwatch()
    view.stage(step, "train", 0, 1)
    with clock.stage("train"):
        batch = TrainingBatch(_examples(config, parts, step))
        indices = range(len(batch.tokens))
        metrics = mean_over_steps(
            lambda part: parts.actor.train_step(batch.select(part)), mini_batches(config, indices, step)
        )
    return {**metrics, **clock.metrics(batch.tokens.active_tokens)}


def _examples(config: TrainConfig, parts: Parts, step: int) -> TokenBatch:
    count = config.rollout.prompts_per_step * config.rollout.group_size
    prompts = prompts_of_step(parts.prompts, count, config.run.seed, step)
    responses = tuple(parts.codec.encode_answer(prompt.answer or "") for prompt in prompts)
    return TokenBatch(
        keys=tuple(f"{step:06d}-{i:03d}-{prompt.key}" for i, prompt in enumerate(prompts)),
        prompt_ids=tuple(parts.codec.encode(prompt.text) for prompt in prompts),
        response_ids=responses,
        response_mask=tuple(np.ones(len(ids), dtype=np.bool_) for ids in responses),
        temperature=np.ones(count, dtype=np.float32),
    )
