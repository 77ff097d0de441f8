"""What is asked of the rollout engine in a step: which prompts, under which keys and seeds.

Everything follows from (run seed, step), so that a resumed run asks exactly what the uninterrupted one would.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logparity.training.tasks import Prompt


def prompts_of_step(prompts: Sequence[Prompt], count: int, seed: int, step: int) -> list[Prompt]:
    """Draw the prompts of a step: each pass over the set is shuffled anew, and no prompt is left out.

    Args:
        prompts: the set.
        count: prompts in a step.
        seed: run seed.
        step: step number, from 1.

    Returns:
        ``count`` prompts; repeats only where the set is smaller than what was drawn since the pass began.
    """
    size = len(prompts)
    first = (step - 1) * count
    orders = {
        epoch: np.random.default_rng([seed, epoch, 0x9E37]).permutation(size) for epoch in _epochs(first, count, size)
    }
    return [prompts[int(orders[i // size][i % size])] for i in range(first, first + count)]


def _epochs(first: int, count: int, size: int) -> range:
    return range(first // size, (first + count - 1) // size + 1)


def request_seed(seed: int, step: int, group: int, member: int) -> int:
    """Seed of one response: a non-negative 63-bit integer."""
    state = np.random.SeedSequence([seed, step, group, member]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
