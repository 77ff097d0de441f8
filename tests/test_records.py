"""Records refuse what would be silently wrong later."""

from __future__ import annotations

import numpy as np
import pytest

from logparity import EngineInfo, LogProbMode, Rollout, SamplingSettings, TokenBatch, TrainingBatch
from logparity.errors import InputError

ENGINE = EngineInfo("transformers", "5", "bfloat16", LogProbMode.PROCESSED)


def rollout(**changes: object) -> Rollout:
    fields: dict[str, object] = {
        "key": "a",
        "group": "g",
        "prompt_ids": np.array([1, 2]),
        "response_ids": np.array([3, 4, 5]),
        "rollout_log_probs": np.array([-0.1, -0.2, -0.3]),
        "response_mask": np.array([1, 1, 0]),
        "weight_version": 0,
        "sampling": SamplingSettings(),
        "engine": ENGINE,
    }
    return Rollout(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_rollout_normalises_its_arrays() -> None:
    sample = rollout()
    assert sample.response_ids.dtype == np.int64
    assert sample.rollout_log_probs.dtype == np.float32
    assert sample.response_mask.dtype == np.bool_
    assert len(sample) == 3


def test_one_log_prob_too_many_is_named_as_such() -> None:
    with pytest.raises(InputError, match=r"expected 3 values.*got 4.*One more value than ids"):
        rollout(rollout_log_probs=np.zeros(4))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.5])
def test_an_active_log_prob_must_be_finite_and_not_positive(bad: float) -> None:
    with pytest.raises(InputError, match=r"sample 'a'.*at position 1"):
        rollout(rollout_log_probs=np.array([-0.1, bad, -0.3]))


def test_an_inactive_position_may_hold_anything() -> None:
    assert np.isnan(rollout(rollout_log_probs=np.array([-0.1, -0.2, np.nan])).rollout_log_probs[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response_mask": np.array([1, 2, 0])}, "only 0 and 1"),
        ({"response_mask": np.array([1, 1])}, "response_mask"),
        ({"response_ids": np.array([3, -1, 5])}, "-1 at position 1"),
        ({"response_ids": np.array([3.0, 4.0, 5.0])}, "expected integers"),
        ({"prompt_ids": np.array([], dtype=np.int64)}, "at least one id"),
    ],
)
def test_bad_fields_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rollout(**changes)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": np.nan},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 1.0},
        {"max_new_tokens": 0},
    ],
)
def test_sampling_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        SamplingSettings(**settings)  # type: ignore[arg-type]


def test_a_batch_keeps_the_temperature_of_each_sample_and_selects_in_order() -> None:
    warm = rollout(key="b", sampling=SamplingSettings(temperature=0.5))
    batch = TokenBatch.from_rollouts([rollout(), warm])
    assert batch.temperature.tolist() == [1.0, 0.5]
    assert batch.active_tokens == 4
    assert batch.select([1, 0]).keys == ("b", "a")
    assert batch.at_temperature(1.0).temperature.tolist() == [1.0, 1.0]


def test_a_training_batch_checks_every_sequence() -> None:
    batch = TokenBatch.from_rollouts([rollout()])
    with pytest.raises(InputError, match="advantages of sample 'a'"):
        TrainingBatch(batch, advantages=(np.zeros(2, np.float32),), old_log_probs=(np.zeros(3, np.float32),))
