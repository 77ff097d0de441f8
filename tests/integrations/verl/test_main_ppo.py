"""Whole ``main_ppo`` runs of the installed verl: two steps of a tiny model on the CPU, V1 and the older V0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from logparity.integrations.readers import read_verl_log
from logparity.probe import analyze_folder
from tests.support.tiny_models import save_tiny_llama

pytestmark = pytest.mark.verl

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
SAMPLES = 8


@dataclass
class Run:
    """What a run left behind."""

    steps: list
    output: str
    files: Path
    tracked: Path


def overrides(root: Path, model: Path) -> list[str]:
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    data, reward = root / "train.parquet", "reward"
    return [
        "algorithm.adv_estimator=grpo",
        "trainer.device=cpu", "trainer.n_gpus_per_node=1", "trainer.nnodes=1",
        "+ray_kwargs.ray_init.num_gpus=1", "ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.include_dashboard=False",
        f"data.train_files={data}", f"data.val_files={data}", "data.train_batch_size=4",
        "data.max_prompt_length=96", "data.max_response_length=12", "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{actor}.strategy=fsdp2", f"{actor}.fsdp_config.strategy=fsdp2", f"{actor}.ppo_mini_batch_size=4",
        f"{actor}.ppo_micro_batch_size_per_gpu=4", f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False", f"{actor}.optim.lr=1e-4",
        f"{rollout}.name=transformers_cpu", f"{rollout}.n=2", f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=4", f"{rollout}.agent.num_workers=1",
        f"{rollout}.calculate_log_probs=True", f"{rollout}.load_format=auto",
        f"{reward}.num_workers=1", f"{reward}.custom_reward_function.path={HERE / 'reward.py'}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "transfer_queue.backend.SimpleStorage.total_storage_size=1000",
        'trainer.logger=["console","file"]', "trainer.val_before_train=False", "trainer.test_freq=-1",
        "trainer.save_freq=-1", "trainer.resume_mode=disable", "trainer.total_training_steps=2",
        "trainer.total_epochs=1",
    ]  # fmt: skip


def main_ppo(root: Path, *extra: str, **environment: str) -> Run:
    root.mkdir(parents=True, exist_ok=True)
    questions = [f"What is {a} plus {b}?" for a in range(1, 5) for b in range(1, 5)]
    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": "4"},
            "extra_info": {"index": index},
        }
        for index, question in enumerate(questions)
    ]
    pd.DataFrame(rows).to_parquet(root / "train.parquet")
    model = save_tiny_llama(root / "model")
    settings = {
        "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "VERL_USE_EXTERNAL_MODULES": "cpu_host", "PYTHONPATH": str(HERE),
        "VERL_FILE_LOGGER_ROOT": str(root / "log"), "RAY_DEDUP_LOGS": "0", "HYDRA_FULL_ERROR": "1",
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo", *overrides(root, model), *extra]
    done = subprocess.run(
        command, env={**os.environ, **settings, **environment}, cwd=root, capture_output=True, text=True, timeout=840
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    (log,) = (root / "log").rglob("*.jsonl")
    return Run(list(read_verl_log(log)), output, root / "diff", log)


def on(root: Path) -> list[str]:
    return ["+trainer.enable_token_level_prob_diff=True", f"+trainer.prob_diff_save_dir={root / 'diff'}"]


@pytest.mark.parametrize("v1", [True, False], ids=["V1", "V0"])
def test_two_steps(tmp_path: Path, v1: bool) -> None:
    run = main_ppo(tmp_path, f"trainer.use_v1={v1}", *on(tmp_path))
    assert "logparity: token-level comparison on, every step" in run.output
    analysis = analyze_folder(run.files)
    assert [step.name.step for step in analysis.steps] == [1, 2]
    logged = [step for step in run.steps if "mismatch/k3" in step.metrics]
    assert [step.step for step in logged] == [1, 2]
    for step, found in zip(logged, analysis.steps, strict=True):
        metrics = step.metrics
        assert found.shape[0] == SAMPLES
        assert metrics["mismatch/tokens"] == found.summary.moments.count
        moments = found.summary.moments
        assert metrics["mismatch/prob_diff_mean"] == pytest.approx(moments.mean, rel=1e-5)
        assert metrics["mismatch/prob_diff_max"] == pytest.approx(moments.maximum, rel=1e-5)
        # verl's own value. V1 takes exp of bfloat16 log-probs in bfloat16: some percent off, which ours is not.
        verls = metrics["training/rollout_probs_diff_mean"]
        assert verls == pytest.approx(moments.mean, **({"rel": 0.1} if v1 else {"abs": 1e-6}))
        assert metrics["census/train_on_bf16_grid"] == 1
        diff = np.load(run.files / f"prob_diff_step_{step.step}.npy")
        assert metrics["training/rollout_probs_diff/s0_p0000"] == pytest.approx(float(diff[0, 0]))
        assert all(np.isfinite(value) for name, value in metrics.items() if name.startswith(("mismatch/", "probe/")))
        keys = json.loads((run.files / f"prob_diff_step_{step.step}.keys.json").read_text())["keys"]
        assert len(set(keys)) == SAMPLES
        parts = {len(key.split("_")) for key in keys}
        assert parts == ({3} if v1 else {2})


def test_off_leaves_verls_output_as_it_was(tmp_path: Path) -> None:
    """Without the switch, and with the plug-in not loaded at all: the same names."""
    absent = main_ppo(tmp_path / "a", "trainer.use_v1=False")
    unloaded = main_ppo(tmp_path / "b", "trainer.use_v1=False", VERL_USE_EXTERNAL_PLUGINS="none")
    assert [set(step.metrics) for step in absent.steps] == [set(step.metrics) for step in unloaded.steps]
    assert "logparity" not in absent.output.replace(str(ROOT), "")
    assert not absent.files.exists()


def test_sub_steps_stay_apart_and_padding_rows_out(tmp_path: Path) -> None:
    """V1 with two sub-steps a step, each of 4 sequences that verl pads to 6: a mini-batch is 3 prompts x 2."""
    actor = "actor_rollout_ref.actor"
    uneven = [f"{actor}.ppo_mini_batch_size=3", f"{actor}.ppo_micro_batch_size_per_gpu=2"]
    uneven.append("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2")
    run = main_ppo(tmp_path, "trainer.use_v1=True", "+trainer.v1.sync.parameter_sync_step=2", *uneven, *on(tmp_path))
    names = sorted(path.name for path in run.files.glob("prob_diff_step_*.npy"))
    assert names == [f"prob_diff_step_{step}{sub}.npy" for step in (1, 2) for sub in ("", "_sub1")]
    logged = [step for step in run.steps if "mismatch/k3" in step.metrics]
    assert [step.step for step in logged] == [1, 2]
    for step in logged:
        found = []
        for sub, prefix in (("", ""), ("_sub1", "sub1")):
            diff, mask = (np.load(run.files / f"prob_{kind}_step_{step.step}{sub}.npy") for kind in ("diff", "mask"))
            assert len(diff) == SAMPLES // 2  # not the 6 rows that verl computed
            keys = json.loads((run.files / f"prob_diff_step_{step.step}{sub}.keys.json").read_text())["keys"]
            assert not any(key.startswith("pad") for key in keys)
            found += keys
            name = f"mismatch/{prefix}/tokens" if prefix else "mismatch/tokens"
            assert step.metrics[name] == mask.sum()
            cell = f"training/rollout_probs_diff/{f'{prefix}_' if prefix else ''}s0_p0000"
            assert step.metrics[cell] == pytest.approx(float(diff[0, 0]))
        assert len(set(found)) == SAMPLES


def test_a_probe_broken_on_purpose_does_not_stop_the_run_and_says_so(tmp_path: Path) -> None:
    run = main_ppo(tmp_path, "trainer.use_v1=True", *on(tmp_path), VERL_USE_EXTERNAL_MODULES="cpu_host,broken_probe")
    assert "ZeroDivisionError" in run.output
    assert "training goes on" in run.output
    trained = [step for step in run.steps if "training/rollout_probs_diff_mean" in step.metrics]
    assert [step.step for step in trained] == [1, 2]
    assert [step.metrics["probe/failed_batches"] for step in trained] == [1, 2]
    assert not any(name.startswith("mismatch/") for step in trained for name in step.metrics)
