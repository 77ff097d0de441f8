"""The mixin on a made-up trainer with GRPOTrainer's methods: what is compared, when, and that nothing gets out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from logparity.integrations.trl import with_probe
from logparity.integrations.trl_steps import merge_steps
from logparity.probe import ProbeConfig


class Base:
    """The methods that the mixin stands before, in TRL's order of calls."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(global_step=0)
        self.model = torch.nn.Linear(1, 1)
        self.logged: list[dict] = []

    def _get_per_token_logps_and_entropies(self, scored):
        return scored, None, None

    def _compute_loss(self, model, inputs):
        self._get_per_token_logps_and_entropies(inputs["scored"])
        return torch.zeros(())

    def log(self, logs, start_time=None):
        self.logged.append(logs)


def inputs(seed: int, width: int = 4, **change):
    generator = torch.Generator().manual_seed(seed)
    sampled = -torch.rand(2, width, generator=generator)
    scored = (sampled + 0.05 * torch.randn(2, width, generator=generator)).requires_grad_()
    mask = torch.ones(2, width, dtype=torch.long)
    mask[1, width - 1] = 0
    tool = torch.ones(2, width, dtype=torch.long)
    tool[0, 1] = 0
    found = {
        "sampling_per_token_logps": sampled.masked_fill(mask == 0, torch.nan),
        "scored": scored,
        "completion_mask": mask,
        "tool_mask": tool,
    }
    return {**found, **change}


def diff_of(batch) -> np.ndarray:
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    gap = batch["sampling_per_token_logps"].double().exp() - batch["scored"].detach().double().exp()
    return gap.abs()[mask].numpy()


def test_a_steps_micro_batches_are_compared_together(tmp_path: Path) -> None:
    trainer = with_probe(Base, save_dir=tmp_path)()
    batches = [inputs(1), inputs(2, width=6)]
    for batch in batches:
        trainer._compute_loss(trainer.model, batch)
    trainer.state.global_step = 1
    trainer.log({"loss": 0.0})
    expected = np.concatenate([diff_of(batch) for batch in batches])
    (logged,) = trainer.logged
    assert logged["loss"] == 0.0
    assert logged["training/rollout_probs_diff_mean"] == pytest.approx(expected.mean(), abs=1e-6)
    assert logged["training/rollout_probs_diff_max"] == pytest.approx(expected.max(), abs=1e-6)
    assert logged["mismatch/tokens"] == len(expected)
    diff = np.load(tmp_path / "prob_diff_step_1.npy")
    assert diff.shape == (4, 6)
    assert not diff[0, 1]
    assert np.isfinite(diff).all()


def test_several_steps_in_one_logging_interval_merge(tmp_path: Path) -> None:
    trainer = with_probe(Base, save_dir=tmp_path)()
    sizes = []
    for step in range(2):
        trainer.state.global_step = step
        batch = inputs(step)
        trainer._compute_loss(trainer.model, batch)
        sizes.append(diff_of(batch))
    trainer.log({})
    (logged,) = trainer.logged
    assert logged["training/rollout_probs_diff_max"] == pytest.approx(max(s.max() for s in sizes), abs=1e-6)
    assert logged["mismatch/tokens"] == sum(map(len, sizes))
    assert (tmp_path / "prob_diff_step_2.npy").exists()
    trainer.log({"train_loss": 1.0})
    assert trainer.logged[1] == {"train_loss": 1.0}


def test_old_log_probs_are_taken_where_trl_has_them() -> None:
    trainer = with_probe(Base)()
    batch = inputs(3)
    batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
    trainer._compute_loss(trainer.model, batch)
    trainer.log({})
    assert trainer.logged[0]["training/rollout_probs_diff_max"] == 0


def test_missing_or_broken_input_is_said_and_the_loss_comes_back(caplog) -> None:
    trainer = with_probe(Base)()
    assert trainer._compute_loss(trainer.model, inputs(1, sampling_per_token_logps=None)) == 0
    assert trainer._compute_loss(trainer.model, inputs(1, completion_mask=torch.ones(3, 3))) == 0
    trainer.log({"loss": 1.0})
    assert "use_vllm=True, or a rollout_func" in caplog.text
    assert "micro-batch not compared" in caplog.text
    assert trainer.logged == [{"loss": 1.0}]


def test_evaluation_is_not_watched(tmp_path: Path) -> None:
    trainer = with_probe(Base, save_dir=tmp_path)()
    trainer.model.eval()
    trainer._compute_loss(trainer.model, inputs(1))
    trainer.log({"eval_loss": 1.0})
    assert trainer.logged == [{"eval_loss": 1.0}]
    assert not list(tmp_path.iterdir())


def test_each_rank_writes_its_own_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    trainer = with_probe(Base, ProbeConfig(strict=True), save_dir=tmp_path)()
    trainer._compute_loss(trainer.model, inputs(1))
    trainer.log({})
    assert (tmp_path / "rank1" / "prob_diff_step_1.npy").exists()


def test_merge() -> None:
    steps = [
        {"a_max": 1.0, "mismatch/tokens": 2.0, "m": 1.0},
        {"a_max": 3.0, "mismatch/tokens": 4.0, "m": 2.0, "n": 5.0},
    ]
    assert merge_steps(steps) == {"a_max": 3.0, "mismatch/tokens": 6.0, "m": 1.5, "n": 5.0}
