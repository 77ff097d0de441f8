"""The plug-in's parts with a made-up trainer: what is found in the caller's frame, and that nothing gets out."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from logparity.integrations.verl_hook import VerlHook
from logparity.integrations.verl_settings import enabled, misspelt, obstacles, settings


def batch(rows: int = 3, width: int = 4, **extra) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(rows, width, generator=generator)
    tensors = {
        "old_log_probs": old,
        "rollout_log_probs": old + 0.1,
        "responses": torch.zeros(rows, width),
        "response_mask": torch.ones(rows, width),
    }
    return SimpleNamespace(batch={**tensors, **extra}, non_tensor_batch={})


class Trainer:
    """Calls the wrapped function as verl's V1 does: by name, with a key-value batch in its frame."""

    def __init__(self, **trainer) -> None:
        self.config = {"trainer": trainer}
        self.global_steps = 3
        self.calculate = VerlHook().around_metrics(lambda _: {"training/rollout_probs_diff_mean": 0.5})

    def step(self, data, keys=None, tags=None):
        batch = None if keys is None else SimpleNamespace(keys=keys, tags=tags)
        metrics = self.calculate(data)
        del batch
        return metrics


def test_off_computes_nothing_and_touches_nothing() -> None:
    def untouchable(name):
        raise AssertionError(name)

    data = SimpleNamespace(batch=SimpleNamespace(keys=lambda: untouchable("batch")))
    for trainer in (Trainer(), Trainer(enable_token_level_prob_diff=False)):
        assert trainer.step(data) == {"training/rollout_probs_diff_mean": 0.5}


def test_verls_names_keep_verls_values() -> None:
    metrics = Trainer(enable_token_level_prob_diff=True).step(batch())
    assert metrics["training/rollout_probs_diff_mean"] == 0.5
    assert metrics["mismatch/log_ratio_abs_mean"] == pytest.approx(0.1, abs=1e-6)


def test_keys_come_from_the_callers_batch_without_its_padding(tmp_path: Path) -> None:
    tags = [{}, {"is_padding": True}, {"is_padding": False}]
    trainer = Trainer(enable_token_level_prob_diff=True, prob_diff_save_dir=str(tmp_path))
    trainer.step(batch(), ["u_0_0", "pad_0_0", "u_1_0"], tags)
    assert json.loads((tmp_path / "prob_diff_step_3.keys.json").read_text())["keys"] == ["u_0_0", "u_1_0"]
    assert np.load(tmp_path / "prob_diff_step_3.npy").shape == (2, 4)


def test_a_resumed_run_does_not_overwrite(tmp_path: Path) -> None:
    for _ in range(2):
        Trainer(enable_token_level_prob_diff=True, prob_diff_save_dir=str(tmp_path)).step(batch())
    assert (tmp_path / "prob_diff_step_3_attempt2.npy").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rollout_log_probs": None}, "calculate_log_probs=True"),
        ({"old_log_probs": torch.zeros(2, 2)}, "old_log_probs: expected shape"),
        ({"response_mask": np.array([["a"]])}, "response_mask: expected an array of numbers"),
    ],
)
def test_what_cannot_be_compared_is_said_and_counted(caplog, change: dict, said: str) -> None:
    trainer = Trainer(enable_token_level_prob_diff=True)
    for count in (1, 2):
        metrics = trainer.step(batch(**change))
        assert metrics == {"training/rollout_probs_diff_mean": 0.5, "probe/failed_batches": count}
    assert caplog.text.count(said) == 1


def test_nan_never_reaches_the_tracker() -> None:
    log_probs = torch.full((3, 4), torch.nan)
    metrics = Trainer(enable_token_level_prob_diff=True).step(batch(rollout_log_probs=log_probs))
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["mismatch/excluded_tokens"] == 12


def test_inputs_are_left_as_they_are() -> None:
    data = batch()
    before = {name: value.clone() for name, value in data.batch.items()}
    Trainer(enable_token_level_prob_diff=True).step(data)
    for name, value in before.items():
        assert torch.equal(value, data.batch[name])


def test_settings_read_mappings_and_their_mistakes(caplog) -> None:
    config = {"trainer": {"enable_token_level_prob_diff": "True", "prob_diff_sample_max_print": 2}}
    assert enabled(config)
    assert settings(config).sample_max_print == 2
    assert not enabled({"trainer": None})
    assert not enabled({})
    assert misspelt({"trainer": {"enable_token_level_prob_difs": True}}) == [
        "trainer.enable_token_level_prob_difs is no setting: did you mean trainer.enable_token_level_prob_diff?"
    ]
    assert misspelt({"trainer": {"save_freq": 1, "nnodes": 1}}) == []
    assert len(obstacles({"algorithm": {"rollout_correction": {"bypass_mode": True}}})) == 2


def test_the_tracker_reports_once_and_only_when_on(caplog) -> None:
    class Tracking:
        def __init__(self, project, name, backend="console", config=None):
            self.config = config

    hook = VerlHook()
    caplog.set_level(logging.INFO)
    Tracking.__init__ = hook.around_tracking(Tracking.__init__)
    Tracking("p", "e", config={"trainer": {}})
    assert caplog.text == ""
    on = {"trainer": {"enable_token_level_prob_diff": True}}
    Tracking("p", "e", config={**on, "actor_rollout_ref": {"rollout": {"calculate_log_probs": True}}})
    assert "comparison on, every step" in caplog.text
    assert Tracking("p", "e", "console", 3).config == 3
