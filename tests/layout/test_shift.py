from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logparity.errors import InputError
from logparity.layout.shift import response_rows


@given(prompt=st.integers(1, 50), response=st.integers(0, 50))
def test_each_response_token_is_predicted_by_the_position_before_it(prompt: int, response: int) -> None:
    positions_of_response = range(prompt, prompt + response)
    assert [row + 1 for row in response_rows(prompt, response)] == list(positions_of_response)


def test_an_empty_prompt_is_refused_with_the_fix() -> None:
    with pytest.raises(InputError, match=r"expected >= 1, got 0.*beginning-of-sequence"):
        response_rows(0, 4)


def test_a_negative_response_is_refused() -> None:
    with pytest.raises(InputError, match="response_length: expected >= 0, got -1"):
        response_rows(3, -1)
