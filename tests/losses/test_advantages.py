"""Group advantages against the statistics module, and what groups that teach nothing give."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logparity.errors import InputError, NonFiniteError
from logparity.losses import group_metrics, grpo_advantages, merge_metrics, rloo_advantages

REWARDS = [1.0, 0.0, 0.25, 3.0, 3.0, 3.0, 7.0, -2.0, 0.5]
GROUPS = ["a", "a", "b", "a", "b", "b", "alone", "b", "a"]
VALID = [True, True, True, False, True, True, True, True, True]

batches = st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 4), st.booleans()), min_size=1, max_size=30)


def mates(i: int, valid: list[bool]) -> list[float]:
    return [r for r, g, v in zip(REWARDS, GROUPS, valid, strict=True) if v and g == GROUPS[i]]


@pytest.mark.parametrize("valid", [None, VALID])
def test_against_the_statistics_module(valid: list[bool] | None) -> None:
    kept = valid or [True] * len(REWARDS)
    mask = None if valid is None else torch.tensor(valid)
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    grpo = grpo_advantages(rewards, GROUPS, valid=mask, epsilon=1e-3)
    centred = grpo_advantages(rewards, GROUPS, valid=mask, normalize_std=False)
    rloo = rloo_advantages(rewards, GROUPS, valid=mask)
    for i, reward in enumerate(REWARDS):
        own = mates(i, kept)
        if not kept[i] or len(own) == 1:
            assert (grpo[i], centred[i], rloo[i]) == (0, 0, 0)
            continue
        mean = statistics.fmean(own)
        others = list(own)
        others.remove(reward)
        assert centred[i].item() == pytest.approx(reward - mean, abs=1e-15)
        assert grpo[i].item() == pytest.approx((reward - mean) / (statistics.stdev(own) + 1e-3), abs=1e-14)
        assert rloo[i].item() == pytest.approx(reward - statistics.fmean(others), abs=1e-14)


@given(batch=batches)
def test_laws(batch: list[tuple[float, int, bool]]) -> None:
    rewards = torch.tensor([r for r, _, _ in batch], dtype=torch.float64)
    groups, valid = [g for _, g, _ in batch], torch.tensor([v for _, _, v in batch])
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(len(batch)))
    shuffled = [groups[i] for i in order.tolist()]
    for function in (grpo_advantages, rloo_advantages):
        found = function(rewards, groups, valid=valid)
        assert (found[~valid] == 0).all()
        moved = function(rewards[order], shuffled, valid=valid[order])
        torch.testing.assert_close(moved, found[order], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(function(rewards, torch.tensor(groups), valid=valid), found, rtol=0, atol=0)
        for group in set(groups):
            own = torch.tensor([g == group for g in groups]) & valid
            assert abs(float(found[own].sum())) < 1e-9 * len(batch)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e8 + 0.1, -7.3])
def test_equal_rewards_give_exactly_zero(reward: float) -> None:
    for dtype in (torch.float32, torch.float64):
        rewards = torch.full((7,), reward, dtype=dtype)
        assert grpo_advantages(rewards, [0] * 7, epsilon=0.0).tolist() == [0.0] * 7
        assert rloo_advantages(rewards, [0] * 7).tolist() == [0.0] * 7


def test_a_rejected_response_does_not_move_its_group() -> None:
    valid = torch.tensor([True, True, True, False])
    for poison in (1e30, float("nan"), float("inf")):
        with_it = grpo_advantages(torch.tensor([1.0, 2.0, 4.0, poison]), [0, 0, 0, 0], valid=valid)
        without = grpo_advantages(torch.tensor([1.0, 2.0, 4.0]), [0, 0, 0])
        assert with_it.tolist() == [*without.tolist(), 0.0]


def test_what_the_groups_teach() -> None:
    found = group_metrics(torch.tensor(REWARDS), GROUPS, valid=torch.tensor(VALID))
    assert found["reward"].value() == pytest.approx(
        statistics.fmean(r for r, v in zip(REWARDS, VALID, strict=True) if v)
    )
    assert found["reward/rejected_fraction"].value() == pytest.approx(1 / 9)
    assert found["reward/single_group_fraction"].value() == pytest.approx(1 / 3)
    assert found["reward/equal_group_fraction"].value() == 0
    equal = group_metrics([2.0, 2.0], ["c", "c"])
    merged = merge_metrics([found, equal])
    assert merged["reward/equal_group_fraction"].value() == pytest.approx(1 / 4)
    assert merged["reward"].value() == pytest.approx((sum(REWARDS) - 3.0 + 4.0) / 10)


def test_bad_input_is_named() -> None:
    with pytest.raises(NonFiniteError, match=r"response 1, group 'b'.*nan"):
        grpo_advantages([1.0, float("nan")], ["a", "b"])
    with pytest.raises(InputError, match="groups: expected 2"):
        grpo_advantages([1.0, 2.0], ["a"])
    with pytest.raises(InputError, match="valid: expected 2"):
        rloo_advantages([1.0, 2.0], ["a", "a"], valid=torch.tensor([True]))
    with pytest.raises(InputError, match="valid: expected only 0 and 1, got 2"):
        rloo_advantages([1.0, 2.0], ["a", "a"], valid=torch.tensor([2, 1]))
    with pytest.raises(InputError, match="1-D"):
        grpo_advantages(torch.zeros(2, 2), ["a", "a"])
    assert grpo_advantages([], []).tolist() == []
