from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logparity.actors.sharing import MicroBatchSize, plan_micro_batches
from logparity.errors import InputError

LENGTHS = st.lists(st.integers(1, 40), max_size=25)


def extent(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


@given(
    LENGTHS, st.integers(40, 120), st.integers(1, 4), st.booleans(), st.sampled_from([1, 4]), st.sampled_from([1, 2])
)
@settings(deadline=None)
def test_every_sequence_once_never_over_budget_equal_counts(
    lengths: list[int], budget: int, ranks: int, packed: bool, multiple: int, count_multiple: int
) -> None:
    keys = [str(i) for i in range(len(lengths))]
    plan = plan_micro_batches(
        lengths, keys, MicroBatchSize(tokens=budget), ranks=ranks, packed=packed, multiple=multiple,
        count_multiple=count_multiple,
    )  # fmt: skip
    assert len(plan) == ranks
    assert sorted(i for rank in plan for batch in rank for i in batch) == list(range(len(lengths)))
    assert len({len(rank) for rank in plan}) == 1
    assert len(plan[0]) % count_multiple == 0
    for batch in (batch for rank in plan for batch in rank if batch):
        sizes = [extent(lengths[i], multiple) for i in batch]
        assert (sum(sizes) if packed else len(sizes) * max(sizes)) <= budget


@given(LENGTHS, st.integers(1, 5), st.integers(1, 3))
@settings(deadline=None)
def test_a_fixed_number_of_sequences(lengths: list[int], size: int, ranks: int) -> None:
    keys = [str(i) for i in range(len(lengths))]
    plan = plan_micro_batches(lengths, keys, MicroBatchSize(sequences=size), ranks=ranks)
    assert sorted(i for rank in plan for batch in rank for i in batch) == list(range(len(lengths)))
    assert all(len(batch) <= size for rank in plan for batch in rank)


def test_ranks_get_similar_work() -> None:
    lengths = list(range(1, 41))
    plan = plan_micro_batches(lengths, [""] * 40, MicroBatchSize(tokens=64), ranks=4)
    loads = [sum(lengths[i] for batch in rank for i in batch) for rank in plan]
    assert max(loads) - min(loads) <= 1


def test_no_sequence_still_makes_a_micro_batch_on_every_rank() -> None:
    assert plan_micro_batches([], [], MicroBatchSize(tokens=8), ranks=2, count_multiple=2) == [[[], []], [[], []]]


def test_one_sequence_over_the_budget_is_named() -> None:
    with pytest.raises(
        InputError, match=r"sequence 'long': 9 tokens, 12 with padding to a multiple of 4, .*at least 12"
    ):
        plan_micro_batches([3, 9], ["short", "long"], MicroBatchSize(tokens=8), multiple=4)


@pytest.mark.parametrize("wrong", [{}, {"tokens": 1, "sequences": 1}, {"tokens": 0}, {"sequences": -1}])
def test_sizes_are_one_positive_number(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"micro.batch"):
        MicroBatchSize(**wrong)
