from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from logparity.records import TokenBatch, TrainingBatch

SHAPES = [(3, 5), (1, 9), (7, 1), (4, 0), (2, 12), (3, 5)]


@pytest.fixture
def ragged() -> TokenBatch:
    """Six sequences of different lengths and temperatures, one without response, some tokens masked."""
    rng = np.random.default_rng(0)
    masks = [rng.random(r) < 0.8 for _, r in SHAPES]
    return TokenBatch(
        keys=tuple(f"s{i}" for i in range(len(SHAPES))),
        prompt_ids=tuple(rng.integers(0, 259, p) for p, _ in SHAPES),
        response_ids=tuple(rng.integers(0, 259, r) for _, r in SHAPES),
        response_mask=tuple(masks),
        temperature=np.array([1.0, 0.5, 1.3, 1.0, 0.8, 1.0], dtype=np.float32),
    )


@pytest.fixture
def signal() -> Callable[[TokenBatch], TrainingBatch]:
    """Gives a batch advantages and old log-probs."""

    def build(tokens: TokenBatch, seed: int = 0) -> TrainingBatch:
        rng = np.random.default_rng(seed)
        draw = lambda scale: tuple((rng.normal(size=len(r)) * scale).astype(np.float32) for r in tokens.response_ids)  # noqa: E731
        return TrainingBatch(tokens=tokens, advantages=draw(1.0), old_log_probs=tuple(-np.abs(v) for v in draw(3.0)))

    return build
