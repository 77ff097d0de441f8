"""Micro-batches hold every sequence once and never exceed their budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logparity import TokenBatch
from logparity.actors.microbatch import micro_batches
from logparity.errors import InputError


def batch_of(lengths: list[int]) -> TokenBatch:
    """Sequences of one prompt token and the rest response."""
    responses = tuple(np.zeros(length - 1, dtype=np.int64) for length in lengths)
    return TokenBatch(
        keys=tuple(f"s{i}" for i in range(len(lengths))),
        prompt_ids=tuple(np.zeros(1, dtype=np.int64) for _ in lengths),
        response_ids=responses,
        response_mask=tuple(np.ones(len(r), dtype=np.bool_) for r in responses),
        temperature=np.ones(len(lengths), dtype=np.float32),
    )


@given(lengths=st.lists(st.integers(1, 60), max_size=30), budget=st.integers(60, 200))
def test_every_sequence_comes_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = micro_batches(batch_of(lengths), budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(len(group) * max(lengths[i] for i in group) <= budget for group in groups)


def test_sequences_of_similar_length_share_a_micro_batch() -> None:
    assert micro_batches(batch_of([3, 10, 4, 9]), 20) == [[1, 3], [2, 0]]


def test_a_sequence_longer_than_the_budget_is_named_with_the_setting() -> None:
    with pytest.raises(
        InputError, match=r"sequence 's1' has 30 tokens.*may hold 20.*Set micro_batch_tokens to at least"
    ):
        micro_batches(batch_of([3, 30]), 20)


def test_a_budget_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="micro_batch_tokens: expected >= 1, got 0"):
        micro_batches(batch_of([1]), 0)
