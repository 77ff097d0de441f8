"""One reinforcement-learning step: sample, reward, score, compare, update, hand the weights over, record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logparity.errors import RewardError
from logparity.probe import write_rollouts
from logparity.records import LogProbMode, Rollout, ScoredTokens, TokenBatch, TrainingBatch, ValueBatch
from logparity.rollout.base import Request
from logparity.training.assemble import Parts
from logparity.training.config import TrainConfig
from logparity.training.costs import Stopwatch
from logparity.training.mini_batches import mean_over_steps, mini_batches
from logparity.training.rewards import RewardSample, compute_rewards
from logparity.training.run_folder import RunFolder
from logparity.training.sampling import prompts_of_step, request_seed
from logparity.training.signal import Scores, Signal, training_signal
from logparity.training.tasks import Prompt
from logparity.training.view import View
from logparity.training.world import World


def rl_step(config: TrainConfig, world: World, parts: Parts, run: RunFolder, view: View, step: int) -> dict[str, float]:
    """Run one step and return its metrics; every rank calls it.

    Args:
        config: resolved configuration.
        world: the processes of the run; the driver samples, rewards, compares, and writes.
        parts: engine, actor, and the rest.
        run: where files go.
        view: told about progress.
        step: step number, from 1.

    Returns:
        Metrics by name; times under ``timing_s/``, throughput under ``perf/``, memory under ``memory/``.

    Raises:
        RewardError: a reward failed and may not be skipped, or every one failed.
    """
    clock = Stopwatch()
    with clock.stage("rollout"):
        prompts, rollouts = world.share(lambda: _sample(config, parts, view, step))
    batch, groups = TokenBatch.from_rollouts(rollouts), [r.group for r in rollouts]
    with clock.stage("reward"):
        rewards, reward_metrics = world.share(lambda: _reward(config, parts, view, prompts, rollouts))
    view.stage(step, "score", 0, 1)
    with clock.stage("score"):
        scored = parts.actor.score(batch, entropy=True)
        scores = _scores(config, parts, batch, scored)
        comparable = _comparable_score(config, parts, batch, scored)
    with clock.stage("probe"):
        probe_metrics = {} if parts.probe is None else parts.probe.observe(rollouts, comparable, step=step)
    view.stage(step, "train", 0, 1)
    with clock.stage("train"):
        signal = training_signal(config.algorithm, batch, groups, rewards, scores)
        kept = [i for i, reward in enumerate(rewards) if reward is not None]
        train_metrics = _update(config, parts, batch, rollouts, scores, signal, kept, step)
    with clock.stage("weights"):
        hand_over_weights(parts)
    with clock.stage("write"):
        world.share(lambda: _record(parts, run, step, rollouts, scored, rewards, signal))
    return {
        **reward_metrics,
        **_response_metrics(rollouts, scored),
        **probe_metrics,
        **train_metrics,
        **clock.metrics(sum(len(r) for r in rollouts)),
    }


def hand_over_weights(parts: Parts) -> None:
    """Give the engine the actor's weights; all ranks take part in collecting them.

    Args:
        parts: actor and engine; without an engine the weights are collected for the rank that has it.
    """
    weights = parts.actor.export_weights()
    if parts.engine is not None:
        parts.engine.update_weights(weights, parts.actor.weight_version)
    for _ in weights:
        pass


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
    rollouts = parts.sampler.generate(
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


def _scores(config: TrainConfig, parts: Parts, batch: TokenBatch, scored: ScoredTokens) -> Scores:
    return Scores(
        old_log_probs=scored.log_probs,
        ref_log_probs=parts.actor.score_reference(batch).log_probs if config.algorithm.kl_coefficient > 0 else None,
        values=None if parts.critic is None else parts.critic.values(batch),
    )


def _comparable_score(config: TrainConfig, parts: Parts, batch: TokenBatch, scored: ScoredTokens) -> ScoredTokens:
    """The score on the distribution that the engine reported: raw log-probs are untempered."""
    raw = config.rollout.log_prob_mode is LogProbMode.RAW and config.rollout.temperature != 1
    return parts.actor.score(batch.at_temperature(1.0)) if raw and config.probe.enabled else scored


def _record(
    parts: Parts,
    run: RunFolder,
    step: int,
    rollouts: Sequence[Rollout],
    scored: ScoredTokens,
    rewards: Sequence[float | None],
    signal: Signal,
) -> None:
    texts = [parts.codec.token_texts(r.response_ids) for r in rollouts]
    known = [np.nan if reward is None else reward for reward in rewards]
    write_rollouts(run.rollouts_of(step), step, rollouts, scored, known, signal.advantages, token_texts=texts)


def _update(
    config: TrainConfig,
    parts: Parts,
    batch: TokenBatch,
    rollouts: Sequence[Rollout],
    scores: Scores,
    signal: Signal,
    kept: Sequence[int],
    step: int,
) -> dict[str, float]:
    """Take the step's optimiser steps, the critic's beside the actor's; metrics are averaged over them."""
    policy = TrainingBatch(
        tokens=batch,
        advantages=signal.advantages,
        old_log_probs=scores.old_log_probs,
        ref_log_probs=scores.ref_log_probs,
        rollout_log_probs=tuple(r.rollout_log_probs for r in rollouts),
    )
    value = None
    if scores.values is not None and signal.returns is not None:
        value = ValueBatch(batch, old_values=scores.values, returns=signal.returns)

    def take(part: list[int]) -> dict[str, float]:
        metrics = dict(parts.actor.train_step(policy.select(part)))
        if parts.critic is not None and value is not None:
            metrics |= parts.critic.train_step(value.select(part))
        return metrics

    return mean_over_steps(take, mini_batches(config, kept, step))


def _response_metrics(rollouts: Sequence[Rollout], scored: ScoredTokens) -> dict[str, float]:
    lengths = np.asarray([len(r) for r in rollouts])
    metrics = {"response_length/mean": float(lengths.mean()), "response_length/max": float(lengths.max())}
    if scored.entropy is not None:
        active = np.concatenate([e[r.response_mask] for e, r in zip(scored.entropy, rollouts, strict=True)])
        if active.size:
            metrics["actor/entropy"] = float(active.mean(dtype=np.float64))
    return metrics
