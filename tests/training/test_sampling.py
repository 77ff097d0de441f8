"""What a step asks follows from seed and step alone, and no prompt is left out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from logparity.training.sampling import prompts_of_step, request_seed
from logparity.training.tasks import Prompt


@given(size=st.integers(1, 7), count=st.integers(1, 9), seed=st.integers(0, 3))
def test_every_pass_over_the_set_asks_each_prompt_once(size: int, count: int, seed: int) -> None:
    prompts = [Prompt(f"p{i}", "t") for i in range(size)]
    asked = [p.key for step in range(1, 1 + size * 2) for p in prompts_of_step(prompts, count, seed, step)]
    for start in range(0, len(asked) - size + 1, size):
        assert Counter(asked[start : start + size]) == Counter(p.key for p in prompts)


def test_seeds_differ_between_samples_steps_and_runs() -> None:
    seeds = {request_seed(s, t, g, m) for s in range(3) for t in range(1, 4) for g in range(3) for m in range(4)}
    assert len(seeds) == 3 * 3 * 3 * 4
    assert all(0 <= s < 2**63 for s in seeds)
