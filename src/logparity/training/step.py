"""One training step, stage by stage: sample, reward, score, compare, update, hand the weights over, record."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from logparity.errors import RewardError
from logparity.probe import write_rollouts
from logparity.records import FloatArray, LogProbMode, Rollout, ScoredTokens, TokenBatch, TrainingBatch
from logparity.rollout.base import Request
from logparity.training.algorithm import advantages_of
from logparity.training.assemble import Parts
from logparity.training.config import TrainConfig
from logparity.training.rewards import RewardSample, compute_rewards
from logparity.training.run_folder import RunFolder
from logparity.training.sampling import prompts_of_step, request_seed
from logparity.training.tasks import Prompt
from logparity.training.view import View


class Stopwatch:
    """Seconds spent in each named stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block under a name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def train_one_step(
    config: TrainConfig, parts: Parts, run: RunFolder, view: View, step: int, attempt: int
) -> dict[str, float]:
    """Run one step and return its metrics.

    Args:
        config: resolved configuration.
        parts: engine, actor, and the rest.
        run: where files go.
        view: told about progress.
        step: step number, from 1.
        attempt: how often the run was resumed.

    Returns:
        Metrics by name; times under ``timing_s/``, throughput under ``perf/``, memory under ``memory/``.

    Raises:
        RewardError: a reward failed and may not be skipped, or every one failed.
    """
    clock = Stopwatch()
    with clock.stage("rollout"):
        prompts, rollouts = _sample(config, parts, view, step)
    with clock.stage("reward"):
        rewards, reward_metrics = _reward(config, parts, view, prompts, rollouts)
    view.stage(step, "score", 0, 1)
    with clock.stage("score"):
        batch = TokenBatch.from_rollouts(rollouts)
        scored = parts.actor.score(batch, entropy=True)
    with clock.stage("probe"):
        probe_metrics = _compare(parts, rollouts, batch, scored, step, attempt)
    view.stage(step, "train", 0, 1)
    with clock.stage("train"):
        advantages = advantages_of(config.algorithm, rewards, [r.group for r in rollouts])
        train_metrics = _update(config, parts, batch, rollouts, scored, rewards, advantages, step)
    with clock.stage("weights"):
        parts.engine.update_weights(parts.actor.export_weights(), parts.actor.weight_version)
    with clock.stage("write"):
        texts = [parts.codec.token_texts(r.response_ids) for r in rollouts]
        known = [np.nan if reward is None else reward for reward in rewards]
        write_rollouts(run.rollouts_of(step), step, rollouts, scored, known, list(advantages), token_texts=texts)
    return {
        **reward_metrics,
        **_response_metrics(rollouts, scored),
        **probe_metrics,
        **train_metrics,
        **_cost_metrics(clock.seconds, rollouts),
    }


def _sample(config: TrainConfig, parts: Parts, view: View, step: int) -> tuple[list[Prompt], list[Rollout]]:
    """Sample every group of the step; one prompt per rollout comes back beside it."""
    groups = prompts_of_step(parts.prompts, config.rollout.prompts_per_step, config.run.seed, step)
    prompts, requests = [], []
    for g, prompt in enumerate(groups):
        group = f"{step:06d}-{g:03d}-{prompt.key}"
        ids = parts.codec.encode(prompt.text)
        for member in range(config.rollout.group_size):
            seed = request_seed(config.run.seed, step, g, member)
            requests.append(Request(f"{group}-{member:03d}", group, ids, seed))
            prompts.append(prompt)
    rollouts = parts.engine.generate(
        requests, parts.sampling, lambda done, total: view.stage(step, "sample", done, total)
    )
    return prompts, [parts.with_text(rollout) for rollout in rollouts]


def _reward(
    config: TrainConfig, parts: Parts, view: View, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]
) -> tuple[list[float | None], dict[str, float]]:
    samples = [RewardSample(r.key, p.text, r.text or "", p.answer) for p, r in zip(prompts, rollouts, strict=True)]
    rewards, problems = compute_rewards(parts.reward, samples, config.on_reward_error)
    for problem in problems[:3]:
        view.message(f"skipped: {problem}")
    known = np.asarray([r for r in rewards if r is not None], dtype=np.float64)
    if not known.size:
        raise RewardError(f"Every reward of the step failed; the last: {problems[-1]}")
    return rewards, {
        "reward/mean": float(known.mean()),
        "reward/std": float(known.std()),
        "reward/min": float(known.min()),
        "reward/max": float(known.max()),
        "reward/skipped": float(len(problems)),
    }


def _compare(
    parts: Parts, rollouts: Sequence[Rollout], batch: TokenBatch, scored: ScoredTokens, step: int, attempt: int
) -> dict[str, float]:
    """Compare both sides on the distribution that the engine reported: raw log-probs are scored untempered."""
    if parts.probe is None:
        return {}
    raw = parts.engine.info.log_prob_mode is LogProbMode.RAW
    if raw and bool(np.any(batch.temperature != 1)):
        scored = parts.actor.score(batch.at_temperature(1.0))
    return parts.probe.observe(rollouts, scored, step=step, attempt=attempt or None)


def _update(
    config: TrainConfig,
    parts: Parts,
    batch: TokenBatch,
    rollouts: Sequence[Rollout],
    scored: ScoredTokens,
    rewards: Sequence[float | None],
    advantages: FloatArray,
    step: int,
) -> dict[str, float]:
    """Take the step's optimiser steps; metrics are averaged over them."""
    reference = parts.actor.score_reference(batch).log_probs if config.algorithm.kl_coefficient > 0 else None
    whole = TrainingBatch(
        tokens=batch,
        advantages=tuple(np.full(len(r), a, dtype=np.float32) for r, a in zip(rollouts, advantages, strict=True)),
        old_log_probs=scored.log_probs,
        ref_log_probs=reference,
        rollout_log_probs=tuple(r.rollout_log_probs for r in rollouts),
    )
    kept = np.asarray([i for i, reward in enumerate(rewards) if reward is not None])
    metrics = [parts.actor.train_step(whole.select(part.tolist())) for part in _mini_batches(config, kept, step)]
    return _mean_metrics(metrics)


def _mini_batches(config: TrainConfig, kept: np.ndarray, step: int) -> Iterator[np.ndarray]:
    """Cut the samples into optimiser steps, shuffled anew in every epoch; one step takes them as they are."""
    parts = min(config.actor.optimizer_steps_per_rollout, len(kept))
    for epoch in range(config.actor.epochs):
        rng = np.random.default_rng([config.run.seed, step, epoch, 0x51AB])
        order = rng.permutation(kept) if parts > 1 else kept
        yield from np.array_split(order, parts)


def _mean_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for part in parts for name in part})
    return {name: float(np.mean([part[name] for part in parts if name in part])) for name in names}


def _response_metrics(rollouts: Sequence[Rollout], scored: ScoredTokens) -> dict[str, float]:
    lengths = np.asarray([len(r) for r in rollouts])
    metrics = {"response_length/mean": float(lengths.mean()), "response_length/max": float(lengths.max())}
    if scored.entropy is not None:
        active = np.concatenate([e[r.response_mask] for e, r in zip(scored.entropy, rollouts, strict=True)])
        if active.size:
            metrics["actor/entropy"] = float(active.mean(dtype=np.float64))
    return metrics


def _cost_metrics(seconds: Mapping[str, float], rollouts: Sequence[Rollout]) -> dict[str, float]:
    tokens = sum(len(r) for r in rollouts)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        **{f"timing_s/{name}": value for name, value in seconds.items()},
        "perf/tokens_per_second": tokens / sum(seconds.values()),
        "memory/max_rss_mib": peak_kib / 1024,
    }
