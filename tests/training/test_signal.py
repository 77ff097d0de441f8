"""Every algorithm's training signal against numpy, written out."""

from __future__ import annotations

import numpy as np
import pytest

from logparity import TokenBatch
from logparity.training.config import AlgorithmConfig
from logparity.training.signal import Scores, training_signal

REWARDS = [1.0, 0.0, 0.5, 2.0, None, 1.0]
GROUPS = ["a", "a", "a", "b", "b", "b"]
LENGTHS = [2, 1, 3, 1, 2, 2]


def batch() -> TokenBatch:
    ids = tuple(np.arange(n) for n in LENGTHS)
    masks = [np.ones(n, dtype=np.bool_) for n in LENGTHS]
    masks[2][1] = False
    return TokenBatch(tuple("abcdef"), ids, ids, tuple(masks), np.ones(6, np.float32))


def random_tokens(seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(-rng.random(n).astype(np.float32) for n in LENGTHS)


OLD, REF, VALUES = random_tokens(0), random_tokens(1), random_tokens(2)


def signal(name: str, **settings: object) -> list[np.ndarray]:
    scores = Scores(OLD, REF, VALUES if name == "ppo" else None)
    config = AlgorithmConfig(name=name, **settings)  # type: ignore[arg-type]
    result = training_signal(config, batch(), GROUPS, REWARDS, scores)
    assert (result.returns is not None) == (name == "ppo")
    return [np.asarray(a, np.float64) for a in result.advantages]


def spread(per_sequence: dict[int, float]) -> list[np.ndarray]:
    return [np.where(m, per_sequence[b], 0.0) for b, m in enumerate(batch().response_mask)]


def centred() -> dict[int, float]:
    mean_a, mean_b = 0.5, 1.5
    return {0: 1 - mean_a, 1: -mean_a, 2: 0.5 - mean_a, 3: 2 - mean_b, 4: 0.0, 5: 1 - mean_b}


def same(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def whitened(values: list[np.ndarray], kept: list[np.ndarray]) -> list[np.ndarray]:
    flat = np.concatenate([v[k] for v, k in zip(values, kept, strict=True)])
    return [np.where(k, (v - flat.mean()) / flat.std(ddof=1), 0.0) for v, k in zip(values, kept, strict=True)]


def kept_tokens() -> list[np.ndarray]:
    """Active tokens of samples that have a reward."""
    return [m & (REWARDS[b] is not None) for b, m in enumerate(batch().response_mask)]


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo"])
def test_group_relative_advantages_are_divided_by_the_standard_deviation(name: str) -> None:
    std = {**dict.fromkeys((0, 1, 2), 0.5), **dict.fromkeys((3, 4, 5), np.std([2, 1], ddof=1))}
    same(signal(name), spread({b: a / std[b] for b, a in centred().items()}))


@pytest.mark.parametrize("name", ["dr_grpo", "reinforce"])
def test_or_left_as_they_are(name: str) -> None:
    same(signal(name), spread(centred()))


def test_rloo_leaves_each_sample_out_of_its_own_baseline() -> None:
    same(signal("rloo"), spread({0: 1 - 0.25, 1: 0 - 0.75, 2: 0.5 - 0.5, 3: 2 - 1, 4: 0.0, 5: 1 - 2}))


def test_reinforce_plus_plus_with_baseline_is_whitened_over_the_step() -> None:
    values = [np.full(n, centred()[b]) for b, n in enumerate(LENGTHS)]
    same(signal("reinforce++_baseline"), whitened(values, kept_tokens()))


def token_rewards(coefficient: float) -> list[np.ndarray]:
    rewards = []
    for b, kept in enumerate(kept_tokens()):
        row = np.zeros(LENGTHS[b])
        if kept.any():
            row[np.flatnonzero(kept)[-1]] = REWARDS[b]
        row[kept] -= coefficient * (OLD[b].astype(np.float64) - REF[b])[kept]
        rewards.append(row)
    return rewards


@pytest.mark.parametrize("coefficient", [0.0, 0.3])
def test_reinforce_plus_plus_whitens_discounted_returns(coefficient: float) -> None:
    got = signal("reinforce++", gamma=0.9, kl_in_reward=coefficient > 0, kl_coefficient=coefficient, kl_estimator="k1")
    returns = []
    for row, kept in zip(token_rewards(coefficient), kept_tokens(), strict=True):
        out, running = np.zeros(len(row)), 0.0
        for t in np.flatnonzero(kept)[::-1]:
            running = out[t] = row[t] + 0.9 * running
        returns.append(out)
    same(got, whitened(returns, kept_tokens()))


def test_ppo_whitens_generalised_advantages_and_keeps_returns_as_they_are() -> None:
    config = AlgorithmConfig(name="ppo", gamma=0.9, gae_lambda=0.8)
    result = training_signal(config, batch(), GROUPS, REWARDS, Scores(OLD, None, VALUES))
    advantages, returns = [], []
    for b, (row, kept) in enumerate(zip(token_rewards(0.0), kept_tokens(), strict=True)):
        out, running, following = np.zeros(len(row)), 0.0, 0.0
        for t in np.flatnonzero(kept)[::-1]:
            delta = row[t] + 0.9 * following - VALUES[b][t]
            running = out[t] = delta + 0.9 * 0.8 * running
            following = VALUES[b][t]
        advantages.append(out)
        returns.append(np.where(kept, out + VALUES[b], 0.0))
    same([np.asarray(a) for a in result.advantages], whitened(advantages, kept_tokens()))
    assert result.returns is not None
    same(list(result.returns), returns)
