from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logparity.actors.microbatch import micro_batches
from logparity.errors import InputError


@given(lengths=st.lists(st.integers(1, 60), max_size=30), budget=st.integers(1, 200))
def test_every_sequence_comes_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = micro_batches(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


def test_sequences_of_similar_length_share_a_micro_batch() -> None:
    assert micro_batches([3, 10, 4, 9], 20) == [[1, 3], [2, 0]]


def test_a_budget_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="micro_batch_tokens: expected >= 1, got 0"):
        micro_batches([1], 0)
