"""GAE, returns, whitening, and REINFORCE++ against loops in plain Python."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logparity.errors import ConfigError, InputError, NonFiniteError
from logparity.losses import (
    discounted_returns,
    gae,
    grpo_advantages,
    reinforce_plus_plus_advantages,
    reinforce_plus_plus_baseline_advantages,
    token_rewards,
    whiten,
)

number = st.floats(-5, 5)
tokens = st.lists(st.tuples(number, number, st.booleans(), st.integers(0, 3)), max_size=40)
fraction = st.floats(0, 1)


def by_hand(batch: list[tuple[float, float, bool, int]], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    advantages, returns = [0.0] * len(batch), [0.0] * len(batch)
    for sequence in {s for _, _, _, s in batch}:
        next_value = next_advantage = 0.0
        for i in reversed(range(len(batch))):
            reward, value, active, owner = batch[i]
            if owner != sequence or not active:
                continue
            next_advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
            next_value = value
            advantages[i], returns[i] = next_advantage, next_advantage + value
    return advantages, returns


@given(batch=tokens, gamma=fraction, lam=fraction)
def test_gae(batch: list[tuple[float, float, bool, int]], gamma: float, lam: float) -> None:
    rewards, values = (torch.tensor([t[k] for t in batch], dtype=torch.float64) for k in (0, 1))
    mask = torch.tensor([t[2] for t in batch], dtype=torch.bool)
    ids = torch.tensor([t[3] for t in batch], dtype=torch.int64)
    advantages, returns = gae(rewards, values, mask, ids, gamma=gamma, lam=lam)
    expected = by_hand(batch, gamma, lam)
    assert advantages.tolist() == pytest.approx(expected[0], rel=1e-9, abs=1e-9)
    assert returns.tolist() == pytest.approx(expected[1], rel=1e-9, abs=1e-9)
    plain = discounted_returns(rewards, mask, ids, gamma=gamma)
    zero_values = [(r, 0.0, m, s) for r, _, m, s in batch]
    assert plain.tolist() == pytest.approx(by_hand(zero_values, gamma, 1.0)[0], rel=1e-9, abs=1e-9)


def test_gae_over_a_long_response() -> None:
    length = 5000
    rewards = torch.zeros(length, dtype=torch.float64)
    rewards[-1] = 1.0
    zeros, mask, ids = torch.zeros(length), torch.ones(length, dtype=torch.bool), torch.zeros(length, dtype=torch.int64)
    advantages, _ = gae(rewards, zeros, mask, ids, gamma=0.999, lam=1.0)
    expected = torch.tensor([0.999 ** (length - 1 - t) for t in range(length)])
    torch.testing.assert_close(advantages, expected.float(), rtol=1e-6, atol=0)


def test_rewards_land_on_the_last_active_token() -> None:
    mask = torch.tensor([1, 1, 0, 0, 0, 1, 0, 1]).bool()
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    rewards = torch.tensor([5.0, 6.0, 7.0])
    assert token_rewards(rewards, mask, ids).tolist() == [0, 5, 0, 0, 0, 0, 0, 7]
    kl = torch.tensor([1.0, 2.0, float("nan"), 1e30, 3.0, 4.0, 5.0, 6.0])
    shaped = token_rewards(rewards, mask, ids, kl=kl, coefficient=0.5)
    assert shaped.tolist() == [-0.5, 4.0, 0, 0, 0, -2.0, 0, 4.0]


def test_whitening() -> None:
    values = torch.tensor([1.0, 4.0, 100.0, -2.0, 0.5], dtype=torch.float64)
    mask = torch.tensor([1, 1, 0, 1, 1])
    own = [1.0, 4.0, -2.0, 0.5]
    mean, scale = statistics.fmean(own), math.sqrt(statistics.variance(own) + 1e-8)
    expected = [(v - mean) / scale for v in own]
    found = whiten(values, mask)
    assert found[mask.bool()].tolist() == pytest.approx(expected, rel=1e-12)
    assert found[2] == 0
    unshifted = whiten(values, mask, shift_mean=False)
    assert unshifted[mask.bool()].tolist() == pytest.approx([e + mean for e in expected], rel=1e-12)
    assert whiten(torch.full((3,), 0.1), torch.ones(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("mask", [[0, 0, 0], [0, 1, 0]])
def test_whitening_over_nothing_is_an_error(mask: list[int]) -> None:
    with pytest.raises(InputError, match=f"at least 2 active tokens to whiten over, got {sum(mask)}"):
        whiten(torch.zeros(3), torch.tensor(mask))
    with pytest.raises(InputError, match="whiten"):
        reinforce_plus_plus_advantages(torch.zeros(3), torch.tensor(mask), torch.zeros(3, dtype=torch.int64))


def test_reinforce_plus_plus_baseline_leaves_rejected_responses_out() -> None:
    mask = torch.tensor([1, 1, 1, 0, 1, 1, 1]).bool()
    ids = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    valid = torch.tensor([True, True, False, True])
    found = reinforce_plus_plus_baseline_advantages(
        torch.tensor([1.0, 3.0, 1e30, 5.0]), ["a", "a", "a", "b"], mask, ids, valid=valid
    )
    tokens = [-1.0, -1.0, 1.0, 0.0]  # centred rewards on the active tokens of valid responses
    mean, scale = statistics.fmean(tokens), math.sqrt(statistics.variance(tokens) + 1e-8)
    low, high, alone = ((c - mean) / scale for c in (-1.0, 1.0, 0.0))
    assert found.tolist() == pytest.approx([low, low, high, 0, 0, 0, alone], rel=1e-12)


def test_bad_input_is_named() -> None:
    three, ids = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    mask = torch.ones(3)
    with pytest.raises(ConfigError, match="gamma"):
        gae(three, three, mask, ids, gamma=1.5)
    with pytest.raises(ConfigError, match="lam"):
        gae(three, three, mask, ids, lam=-0.1)
    with pytest.raises(InputError, match="values: expected shape"):
        gae(three, torch.zeros(2), mask, ids)
    with pytest.raises(InputError, match=r"mask: expected only 0 and 1, got 0\.5"):
        discounted_returns(three, torch.tensor([1, 0.5, 0]), ids)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_active_number_is_raised_with_its_place(value: float) -> None:
    clean, ids = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 1, 1, 1])
    bad, mask = clean.clone(), torch.ones(4, dtype=torch.bool)
    bad[2] = value
    where = rf"got {value} at index 2 \(response position 1 of sequence 1\); 1 such in all"
    for name, call in {
        "rewards: .*" + where: lambda m: gae(bad, clean, m, ids),
        "values: .*" + where: lambda m: gae(clean, bad, m, ids),
        "rewards: expected.*" + where: lambda m: reinforce_plus_plus_advantages(bad, m, ids),
        "rewards: expected finite.*" + where: lambda m: discounted_returns(bad, m, ids),
        "kl: .*" + where: lambda m: token_rewards(torch.ones(2), m, ids, kl=bad, coefficient=0.1),
        rf"values to whiten: .*got {value} at index 2; 1 such": lambda m: whiten(bad, m),
    }.items():
        with pytest.raises(NonFiniteError, match=name):
            call(mask)
        found = call(mask & bad.isfinite())  # the way out that the message names
        assert all(part.isfinite().all() for part in (found if isinstance(found, tuple) else (found,)))
    with pytest.raises(NonFiniteError, match=rf"rewards: .*got {value} at index 3"):
        token_rewards(torch.tensor([1.0, value]), mask, ids)
    assert token_rewards(torch.tensor([1.0, value]), mask & (ids == 0), ids).tolist() == [1, 0, 0, 0]


def test_all_ranks_raise_where_one_has_a_non_finite_reward() -> None:
    clean, mask, ids = torch.tensor([0.1, 0.2]), torch.ones(2, dtype=torch.bool), torch.tensor([0, 0])

    def one_bad_elsewhere(numbers: torch.Tensor) -> torch.Tensor:
        return numbers + 1

    for call in (
        lambda: whiten(clean, mask, across=one_bad_elsewhere),
        lambda: reinforce_plus_plus_advantages(clean, mask, ids, across=one_bad_elsewhere),
        lambda: reinforce_plus_plus_baseline_advantages(clean, ["a", "a"], mask, ids, across=one_bad_elsewhere),
    ):
        with pytest.raises(NonFiniteError, match="1 others on other ranks"):
            call()


def test_ids_and_rewards_that_do_not_fit_are_named() -> None:
    mask, ids = torch.ones(3, dtype=torch.bool), torch.tensor([0, 1, 2])
    with pytest.raises(InputError, match=r"sequence_ids: expected values in \[0, 2\).*got 0 to 2"):
        token_rewards(torch.ones(2), mask, ids)
    with pytest.raises(InputError, match=r"sequence_ids: expected values in \[0, 2\).*got 0 to 2"):
        reinforce_plus_plus_baseline_advantages(torch.ones(2), ["a", "a"], mask, ids)
    with pytest.raises(InputError, match=r"got -1 to 1"):
        token_rewards(torch.ones(2), mask, ids - 1)
    for wrong in (ids.float(), ids.bool(), ids.to(torch.uint8)):
        with pytest.raises(InputError, match="sequence_ids: expected int64, got torch"):
            gae(torch.ones(3), torch.ones(3), mask, wrong)
        with pytest.raises(InputError, match="sequence_ids: expected int64, got torch"):
            token_rewards(torch.ones(3), mask, wrong)
    for epsilon in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="epsilon"):
            grpo_advantages(torch.ones(2), ["a", "a"], epsilon=epsilon)
        with pytest.raises(ConfigError, match="epsilon"):
            whiten(torch.ones(3), mask, epsilon=epsilon)
