"""The two sides on the same weights: in float32 they agree, in bfloat16 they differ as real engines do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from logparity.actors import HFActor
from logparity.records import Rollout, SamplingSettings, TokenBatch
from logparity.rollout import HFRolloutEngine, Request

PROMPTS = ["Count from one to ten:", "The capital of France is", "Write a short poem about the sea, please."]


def mean_probability_gap(folder: Path, dtype: str) -> float:
    """Mean |exp(old) - exp(rollout)| over 6 responses of 24 tokens at temperature 0.9."""
    from logparity.models.loading import load_tokenizer

    tokenizer = load_tokenizer(folder)
    requests = [Request(f"s{i}", f"g{i % 3}", np.array(tokenizer(PROMPTS[i % 3]).input_ids), seed=i) for i in range(6)]
    settings = SamplingSettings(temperature=0.9, max_new_tokens=24)
    rollouts: list[Rollout] = HFRolloutEngine(folder, dtype=dtype, device="cpu").generate(requests, settings)
    scored = HFActor(folder, dtype=dtype, device="cpu").score(TokenBatch.from_rollouts(rollouts))
    gaps = [
        np.abs(np.exp(old.astype(np.float64)) - np.exp(r.rollout_log_probs.astype(np.float64)))
        for r, old in zip(rollouts, scored.log_probs, strict=True)
    ]
    return float(np.concatenate(gaps).mean())


@pytest.mark.model
def test_in_float32_both_sides_agree(smollm2_folder: Path) -> None:
    assert mean_probability_gap(smollm2_folder, "float32") < 1e-5


@pytest.mark.model
def test_in_bfloat16_they_differ_as_real_engines_do(smollm2_folder: Path) -> None:
    assert 1e-4 < mean_probability_gap(smollm2_folder, "bfloat16") < 2e-2


def test_on_a_small_model_both_sides_agree(tiny_folder: Path) -> None:
    assert mean_probability_gap(tiny_folder, "float32") < 1e-5
