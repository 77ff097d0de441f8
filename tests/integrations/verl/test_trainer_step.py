"""verl's own V1 step on a real Ray cluster and a real TransferQueue; only the actor's forward pass is made up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
import verl  # noqa: F401  loads the plug-in
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import get_trainer_cls

pytestmark = pytest.mark.verl

PROMPTS, RESPONSES = (3, 5, 4, 2, 6, 3), (4, 7, 1, 5, 3, 6)
ORDER = (3, 0, 5, 1, 2, 4)
FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "input_ids"]


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    storage = {"total_storage_size": 1000, "num_data_storage_units": 1}
    backend = {"storage_backend": "SimpleStorage", "SimpleStorage": storage}
    tq.init(OmegaConf.create({"enable": True, "backend": backend}))
    yield
    tq.close()
    ray.shutdown()


def nested(parts):
    return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)


class Actor:
    """Stands for the remote actor: writes log-probs of whole sequences, each one place early, as the engine does."""

    def __init__(self, keys: list[str], old: list[torch.Tensor]) -> None:
        self.keys, self.old = keys, old

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        log_probs = []
        for key in batch.keys:
            row = self.keys.index(key)
            whole = torch.zeros(PROMPTS[row] + RESPONSES[row])
            whole[PROMPTS[row] - 1 : -1] = self.old[row]
            log_probs.append(whole)
        fields = {"log_probs": nested(log_probs), "entropy": nested(torch.rand_like(x) for x in log_probs)}
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=[len(batch)])
        )
        return batch


@pytest.fixture
def step(cluster, tmp_path: Path):
    """A trainer whose configuration is ours to choose, and a batch whose last row is synthetic padding."""
    generator = torch.Generator().manual_seed(1)
    old = [-torch.rand(r, generator=generator) for r in RESPONSES]
    rollout = [x + 0.02 * torch.randn(len(x), generator=generator) for x in old]
    masks = [torch.ones(r, dtype=torch.int64) for r in RESPONSES]
    masks[1][3:5] = 0
    masks[5][:] = 0
    keys = [f"uid{i // 2}_{i % 2}_0" for i in range(5)] + ["pad0_0_0"]
    ids = [torch.arange(r) + 100 for r in RESPONSES]
    fields = {
        "prompts": nested(torch.arange(p) for p in PROMPTS),
        "responses": nested(ids),
        "response_mask": nested(masks),
        "rollout_log_probs": nested(rollout),
        "input_ids": nested(torch.cat([torch.arange(p), r]) for p, r in zip(PROMPTS, ids, strict=True)),
    }
    tags = [{"status": "success", "global_steps": 7} for _ in PROMPTS]
    tags[5]["is_padding"] = True
    tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(fields, batch_size=[6]), tags=tags)

    def run(trainer: dict, local_trigger_step: int = 0) -> dict[str, float]:
        cls = get_trainer_cls("sync")
        made = cls.__new__(cls)
        rollout_config = {"temperature": 1.0, "calculate_log_probs": True}
        actor = {"loss_agg_mode": "token-mean", "loss_scale_factor": None}
        made.config = OmegaConf.create(
            {
                "algorithm": {"rollout_correction": None},
                "actor_rollout_ref": {"rollout": rollout_config, "actor": actor},
                "trainer": trainer,
            }
        )
        made.actor_rollout_wg = Actor(keys, old)
        made.global_steps, made.local_trigger_step = 7, local_trigger_step
        batch = KVBatchMeta(keys=list(keys), tags=tags, partition_id="train", fields=list(FIELDS))
        batch.reorder(list(ORDER))
        metrics: dict[str, float] = {}
        made._compute_old_log_prob(batch, metrics=metrics)
        return metrics

    return run, keys, old, rollout, masks


def on(folder: Path) -> dict:
    return {"enable_token_level_prob_diff": True, "prob_diff_save_dir": str(folder)}


def test_the_step_gives_keys_and_leaves_padding_out(step, tmp_path: Path) -> None:
    run, keys, old, rollout, masks = step
    metrics = run(on(tmp_path))
    found = json.loads((tmp_path / "prob_diff_step_7.keys.json").read_text())["keys"]
    assert found == [keys[row] for row in ORDER if row != 5]
    diff, mask = (np.load(tmp_path / f"prob_{name}_step_7.npy") for name in ("diff", "mask"))
    assert diff.shape == (5, max(RESPONSES))
    for line, row in enumerate(row for row in ORDER if row != 5):
        expected = (rollout[row].double().exp() - old[row].double().exp()).abs() * masks[row]
        np.testing.assert_allclose(diff[line, : RESPONSES[row]], expected, atol=1e-6)
        assert mask[line].sum() == masks[row].sum()
    everything = torch.cat([abs(a.exp() - b.exp())[m.bool()] for a, b, m in zip(rollout, old, masks, strict=True)])
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(everything.mean().item(), abs=1e-6)
    assert metrics["mismatch/tokens"] == len(everything)
    assert metrics["training/rollout_probs_diff/s0_p0000"] == pytest.approx(diff[0, 0])


def test_sub_steps_are_kept_apart(step, tmp_path: Path) -> None:
    run = step[0]
    run(on(tmp_path))
    metrics = run(on(tmp_path), local_trigger_step=1)
    assert (tmp_path / "prob_diff_step_7.npy").exists()
    assert (tmp_path / "prob_diff_step_7_sub1.npy").exists()
    assert "training/rollout_probs_diff/sub1_s0_p0000" in metrics
    assert "training/rollout_probs_diff/s0_p0000" not in metrics
    assert "mismatch/sub1/k3" in metrics


def test_off_leaves_the_step_as_it_was(step, tmp_path: Path) -> None:
    names = set(step[0]({}))
    assert names == {"actor/entropy"} | {name for name in names if "rollout" in name}
    assert len(names) == 6


def test_a_probe_broken_on_purpose_does_not_stop_verl(step, tmp_path: Path, monkeypatch, caplog) -> None:
    from logparity.integrations import verl_batch

    monkeypatch.setattr(verl_batch, "read_batch", lambda _: 1 / 0)
    metrics = step[0](on(tmp_path))
    assert metrics["probe/failed_batches"] == 1
    assert "training/rollout_probs_diff_mean" in metrics
    assert "ZeroDivisionError" in caplog.text
    assert "training goes on" in caplog.text


def test_a_folder_that_cannot_be_written_to_leaves_metrics(step, tmp_path: Path, caplog) -> None:
    (tmp_path / "file").touch()
    metrics = step[0](on(tmp_path / "file"))
    assert "no more .npy files, metrics go on" in caplog.text
    assert "mismatch/k3" in metrics


def test_ray_workers_load_the_plugin(cluster) -> None:
    @ray.remote(num_cpus=0)  # the queue's own actors hold the two
    def probe() -> bool:
        from verl.utils.debug import metrics

        return hasattr(metrics.calculate_debug_metrics, "wrapped_by_logparity")

    assert ray.get(probe.remote(), timeout=300)
