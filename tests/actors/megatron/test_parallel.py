"""Every parallel layout against one process on Transformers: scores, gradients, and weights after a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.megatron_truth import OBJECTIVE, OPTIMIZER, Truth, compute_truth, largest_gap, mean_gap
from tests.support.spawn import spawn

pytestmark = pytest.mark.distributed

TWO_RANKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tp2": ("qwen2", {"tensor": 2}, {}),
    "tp2 sp": ("qwen3", {"tensor": 2, "sequence_parallel": True}, {"recompute_loss": True}),
    "cp2 zigzag": ("llama", {"context": 2}, {}),
    "cp2 zigzag padded": ("qwen3", {"context": 2}, {"packed": False}),
    "cp2 contiguous": ("llama", {"context": 2, "context_layout": "contiguous"}, {}),
    "pp2": ("llama", {"pipeline": 2}, {"packed": False}),
    "pp2 interleaved": ("llama", {"pipeline": 2, "virtual_pipeline": 2}, {}),
    "dp2 distributed optimizer": ("llama", {}, {"distributed_optimizer": True}),
    "ep2": ("qwen3_moe", {"expert": 2}, {}),
}
FOUR_RANKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tp2 pp2": ("llama", {"tensor": 2, "pipeline": 2}, {"recompute_layers": True}),
    "tp2 ep2": ("qwen3_moe", {"tensor": 2, "expert": 2, "sequence_parallel": True}, {"distributed_optimizer": True}),
    "tp2 cp2": ("qwen3", {"tensor": 2, "context": 2, "sequence_parallel": True}, {}),
}
BOUNDS = {"log_probs": 1e-5, "entropy": 1e-5, "gradient": 1e-5, "norm": 1e-5, "weights": 1e-6, "bfloat16": 1.0}
"""Largest gap of a log-prob and entropy (nats), of a gradient element over its tensor's largest, of the
gradient's norm (relative), of a weight after one step; and of bfloat16 scores in units of their own budget."""


@pytest.fixture(scope="module")
def truths(families: dict[str, Path]) -> dict[str, Truth]:
    return {name: compute_truth(folder) for name, folder in families.items()}


@pytest.mark.parametrize(("ranks", "layouts"), [(2, TWO_RANKS), (4, FOUR_RANKS)])
def test_layouts_meet_one_process(truths: dict[str, Truth], ranks: int, layouts: dict[str, Any]) -> None:
    figures = spawn(_every_layout, ranks, truths, layouts)[0]
    print(*(f"{name}: {found}" for name, found in figures.items()), sep="\n")  # noqa: T201
    wrong = {
        (name, what): value
        for name, found in figures.items()
        for what, value in found.items()
        if not value <= BOUNDS[what]
    }
    assert not wrong


def _every_layout(rank: int, size: int, truths: dict[str, Truth], layouts: dict[str, Any]) -> dict[str, Any]:
    from logparity.actors.megatron import (
        MegatronConfig,
        MicroBatchSize,
        ParallelSizes,
        initialize_groups,
        release_groups,
    )

    figures = {}
    for name, (family, sizes, settings) in layouts.items():
        groups = initialize_groups(ParallelSizes(**sizes))
        config = MegatronConfig(dtype="float32", micro_batch=MicroBatchSize(tokens=40), **settings)
        figures[name] = _float32(truths[family], groups, config)
        if family != "qwen3_moe":
            figures[name] |= _bfloat16(truths[family], groups, settings)
        release_groups()
    return figures


def _float32(truth: Truth, groups: Any, config: Any) -> dict[str, float]:
    from logparity.actors.megatron import MegatronActor
    from logparity.actors.megatron.weights import each_weight

    actor = MegatronActor(truth.folder, groups, OBJECTIVE, OPTIMIZER, config=config)
    scores = actor.score(truth.batch.tokens, entropy=True)
    assert scores.entropy is not None
    assert truth.scores.entropy is not None
    actor.gradients(truth.batch, OBJECTIVE, whole=True)
    gradients = {name: g.clone() for name, g in each_weight(actor._engine.model, lambda p: p.main_grad)}
    assert gradients.keys() == truth.gradients.keys()
    metrics = actor.train_step(truth.batch)
    weights = dict(actor.export_weights())
    assert weights.keys() == truth.weights.keys()
    for name in ("loss", "policy/ratio", "kl/mean"):
        if name in truth.metrics:
            assert metrics[name] == pytest.approx(truth.metrics[name], rel=1e-5, abs=1e-6), name
    norm = truth.metrics["actor/grad_norm"]
    return {
        "log_probs": largest_gap(scores.log_probs, truth.scores.log_probs),
        "entropy": largest_gap(scores.entropy, truth.scores.entropy),
        "gradient": max(_relative(gradients[name], truth.gradients[name]) for name in gradients),
        "norm": abs(metrics["actor/grad_norm"] - norm) / norm,
        "weights": max(float((weights[name] - truth.weights[name]).abs().max()) for name in weights),
    }


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the tensor's largest entry."""
    return float((found - expected).abs().max() / expected.abs().max())


def _bfloat16(truth: Truth, groups: Any, settings: dict[str, Any]) -> dict[str, float]:
    """Distance from float32, as a share of twice what bfloat16 costs the Transformers actor."""
    from logparity.actors.megatron import MegatronActor, MegatronConfig

    actor = MegatronActor(truth.folder, groups, config=MegatronConfig(dtype="bfloat16", **settings))
    scores = actor.score(truth.batch.tokens)
    # Twice, because tensor parallelism rounds each rank's part of a sum before they are added.
    budget = mean_gap(truth.half_scores.log_probs, truth.scores.log_probs)
    return {"bfloat16": mean_gap(scores.log_probs, truth.scores.log_probs) / (2 * budget)}
