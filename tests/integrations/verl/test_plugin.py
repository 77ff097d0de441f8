"""The plug-in in the installed verl, found by verl itself: run by ``make test-verl`` in a venv of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl import DataProto
from verl.utils import torch_functional
from verl.utils.debug import metrics as verl_metrics

from logparity.integrations import verl as ours

pytestmark = pytest.mark.verl

KEYS = ("max", "mean", "std")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh process: plug-ins are loaded once per process."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def batch(rows: int = 4, width: int = 8, seed: int = 0) -> DataProto:
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=generator)
    mask = torch.ones(rows, width, dtype=torch.long)
    mask[0, 5:] = 0
    tensors = {
        "old_log_probs": old,
        "rollout_log_probs": old + 0.01 * torch.randn(rows, width, generator=generator),
        "response_mask": mask,
        "responses": torch.zeros(rows, width, dtype=torch.long),
    }
    return DataProto.from_dict(tensors=tensors)


def test_it_is_the_wheel_that_is_tested() -> None:
    assert Path(ours.__file__).is_relative_to(sys.prefix)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 9), width=st.integers(2, 33), seed=st.integers(0, 10_000))
def test_aggregates_equal_verls(rows: int, width: int, seed: int) -> None:
    data = batch(rows, max(width, 6), seed)
    theirs = verl_metrics.calculate_debug_metrics.__wrapped__(data)
    mine = ours.calculate_debug_metrics(data)
    assert set(mine) == set(theirs)
    for name, value in theirs.items():
        assert mine[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_and_entropy_are_closer_to_the_truth_than_verls(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, 7, 1003, generator=generator) * 3).to(dtype)
    labels = torch.randint(0, 1003, (3, 7), generator=generator)
    truth = logits.double().log_softmax(-1)
    log_probs = truth.gather(-1, labels[..., None])[..., 0]
    entropy = -(truth.exp() * truth).sum(-1)
    pairs = [
        (
            ours.logprobs_from_logits(logits, labels),
            torch_functional.logprobs_from_logits_v2(logits, labels),
            log_probs,
        ),
        (ours.entropy_from_logits(logits), torch_functional.entropy_from_logits(logits), entropy),
    ]
    for mine, theirs, true in pairs:
        assert mine.shape == theirs.shape
        error, allowed = ((x.double() - true).abs().max().item() for x in (mine, theirs))
        assert error <= allowed + 2e-6


def test_one_line_replaces_them_everywhere_and_gives_them_back() -> None:
    from verl.workers.engine.fsdp import transformer_impl

    original = torch_functional.logprobs_from_logits
    replaced = ours.use_token_log_probs()
    assert torch_functional.logprobs_from_logits is ours.logprobs_from_logits
    assert transformer_impl.logprobs_from_logits is ours.logprobs_from_logits
    assert torch_functional.entropy_from_logits is ours.entropy_from_logits
    replaced.undo()
    assert torch_functional.logprobs_from_logits is original
    assert transformer_impl.logprobs_from_logits is original


BOUND = """
    import sys, verl
    from verl.utils.debug import metrics
    wrapped = hasattr(metrics.calculate_debug_metrics, "wrapped_by_logparity")
    heavy = [name for name in sys.modules if name.startswith(("logparity.probe", "logparity.ops"))]
    import verl.trainer.ppo.v1.trainer_base as v1
    print(wrapped, heavy, v1.calculate_debug_metrics is metrics.calculate_debug_metrics, file=sys.stdout)
"""


@pytest.mark.parametrize(("policy", "wrapped"), [("auto", "True"), ("none", "False"), ("logparity", "True")])
def test_verl_loads_it_and_v1_binds_the_wrapped_function(policy: str, wrapped: str) -> None:
    done = run(BOUND, VERL_USE_EXTERNAL_PLUGINS=policy)
    assert done.stdout.split("\n")[-2] == f"{wrapped} [] True", done.stderr[-2000:]
    assert "logparity" not in done.stderr


def test_a_plugin_broken_on_purpose_says_so_and_verl_goes_on(tmp_path: Path) -> None:
    """What verl would swallow at DEBUG is in its log."""
    code = """
        import logparity.integrations.verl_hook as hook
        hook.VerlHook.around_tracking = None
        import verl
        print("verl", verl.__version__)
    """
    done = run(code)
    assert done.returncode == 0
    assert "verl 0.9" in done.stdout
    assert "plug-in not installed (TypeError" in done.stderr


TRAINER = """
    import numpy as np, torch, verl
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.utils.tracking import Tracking
    old = torch.full((4, 3), -1.0)
    tensors = dict(old_log_probs=old, rollout_log_probs=old + 0.1, response_mask=torch.ones(4, 3), responses=old.long())
    uid = np.array(["a", "b", "a", "b"], dtype=object)
    data = DataProto.from_dict(tensors=tensors, non_tensors={{"uid": uid}})
    class Trainer:
        global_steps = 7
        def __init__(self, config):
            self.config = OmegaConf.create(config)
            Tracking("p", "e", "console", config=config)
        def fit(self, batch):
            from verl.utils.debug.metrics import calculate_debug_metrics
            return calculate_debug_metrics(batch)
    rollout = dict(calculate_log_probs={reported})
    out = Trainer(dict(trainer={trainer}, actor_rollout_ref=dict(rollout=rollout))).fit(data)
    print(sorted(out))
"""


def test_off_adds_nothing(tmp_path: Path) -> None:
    for trainer in ({}, {"enable_token_level_prob_diff": False, "prob_diff_save_dir": str(tmp_path)}):
        done = run(TRAINER.format(trainer=trainer, reported=True))
        names = done.stdout.strip().splitlines()[-1]
        assert names.count("'") == 10, done.stderr[-2000:]
        assert "logparity" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_on_adds_grid_and_files_and_says_so(tmp_path: Path) -> None:
    trainer = {
        "enable_token_level_prob_diff": True,
        "prob_diff_save_dir": str(tmp_path),
        "prob_diff_token_max_print": 2,
    }
    done = run(TRAINER.format(trainer=trainer, reported=True))
    assert "'training/rollout_probs_diff/s3_p0001'" in done.stdout, done.stderr[-2000:]
    assert "s0_p0002" not in done.stdout
    assert "'mismatch/k3'" in done.stdout
    assert f"comparison on, every step; grid of 8 samples x 2 positions, files in {tmp_path}" in done.stderr
    assert np.load(tmp_path / "prob_diff_step_7.npy").shape == (4, 3)
    assert '"keys": ["a_0", "b_0", "a_1", "b_1"]' in (tmp_path / "prob_diff_step_7.keys.json").read_text()


def test_what_stands_in_its_way_is_said_at_the_start() -> None:
    trainer = {"enable_token_level_prob_diff": True, "prob_diff_token_max_prnt": 3}
    done = run(TRAINER.format(trainer=trainer, reported=False))
    assert "set actor_rollout_ref.rollout.calculate_log_probs=True" in done.stderr
    assert "did you mean trainer.prob_diff_token_max_print" in done.stderr
    assert "training/rollout_probs_diff_mean" in done.stdout


def test_a_bad_setting_stops_the_comparison_not_verl() -> None:
    trainer = {"enable_token_level_prob_diff": True, "prob_diff_token_max_print": "many"}
    done = run(TRAINER.format(trainer=trainer, reported=True))
    assert "trainer.prob_diff_token_max_print: expected an integer >= 0, got 'many'" in done.stderr
    assert "'probe/failed_batches'" in done.stdout
    assert "training/rollout_probs_diff_mean" in done.stdout
