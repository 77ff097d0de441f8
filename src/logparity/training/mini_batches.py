"""Cutting a step's samples into optimiser steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from logparity.training.config import TrainConfig


def mini_batches(config: TrainConfig, kept: Sequence[int], step: int) -> Iterator[list[int]]:
    """Indices of each optimiser step, shuffled anew in every epoch; a single one takes the samples as they are.

    Args:
        config: resolved configuration.
        kept: samples that are trained on.
        step: step number; with the run's seed it decides the order.

    Yields:
        Parts of ``kept`` of nearly equal size, each sample once per epoch.
    """
    parts = min(config.actor.optimizer_steps_per_rollout, len(kept))
    for epoch in range(config.actor.epochs):
        rng = np.random.default_rng([config.run.seed, step, epoch, 0x51AB])
        order = rng.permutation(kept) if parts > 1 else np.asarray(kept)
        yield from (part.tolist() for part in np.array_split(order, parts))


def mean_over_steps(take: Callable[[list[int]], Mapping[str, float]], parts: Iterator[list[int]]) -> dict[str, float]:
    """Take every optimiser step and average each metric over the steps that gave it.

    Args:
        take: one optimiser step on the samples at given indices.
        parts: the indices of each.

    Returns:
        Mean metrics by name.
    """
    metrics = [take(part) for part in parts]
    names = sorted({name for part in metrics for name in part})
    return {name: float(np.mean([part[name] for part in metrics if name in part])) for name in names}
