"""What one process on Transformers computes from a model folder: the truth that every parallel layout must meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from logparity.actors.hf import HFActor
from logparity.actors.optimizer import OptimizerConfig
from logparity.losses import ClipConfig, EntropyConfig, KLConfig, PolicyObjective
from logparity.records import FloatArray, ScoredTokens, TokenBatch, TrainingBatch

SHAPES = [(3, 5), (1, 9), (7, 1), (4, 0), (2, 12), (3, 5), (11, 6)]
OPTIMIZER = OptimizerConfig(lr=1e-6, eps=1e-6)
OBJECTIVE = PolicyObjective(
    surrogate=ClipConfig(), kl=KLConfig(coefficient=0.1), entropy_bonus=EntropyConfig(coefficient=0.01)
)


@dataclass(frozen=True)
class Truth:
    """One step of the Transformers actor in float32, and its scores in bfloat16."""

    folder: Path
    batch: TrainingBatch
    scores: ScoredTokens
    half_scores: ScoredTokens
    metrics: dict[str, float]
    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


def ragged_batch(seed: int = 0) -> TokenBatch:
    """Seven sequences, one without response, some tokens masked, at their own temperatures."""
    # The pad id 0 is not among the tokens: Transformers never trains its embedding, Megatron does.
    rng = np.random.default_rng(seed)
    return TokenBatch(
        keys=tuple(f"s{i}" for i in range(len(SHAPES))),
        prompt_ids=tuple(rng.integers(3, 259, p) for p, _ in SHAPES),
        response_ids=tuple(rng.integers(3, 259, r) for _, r in SHAPES),
        response_mask=tuple(rng.random(r) < 0.8 for _, r in SHAPES),
        temperature=np.array([1.0, 0.5, 1.3, 1.0, 0.8, 1.0, 0.9], dtype=np.float32),
    )


def training_batch(tokens: TokenBatch, scores: ScoredTokens, seed: int = 0) -> TrainingBatch:
    """Advantages, and old, reference, and rollout log-probs near the scores."""
    rng = np.random.default_rng(seed)

    def near(scale: float) -> tuple[FloatArray, ...]:
        return tuple((v + rng.normal(size=len(v)) * scale).astype(np.float32) for v in scores.log_probs)

    advantages = tuple(rng.normal(size=len(v)).astype(np.float32) for v in scores.log_probs)
    return TrainingBatch(tokens, advantages, near(0.1), near(0.2), near(0.1))


def compute_truth(folder: Path) -> Truth:
    """Score and train the folder's model in one process."""
    actor = HFActor(folder, OBJECTIVE, OPTIMIZER, dtype="float32", device="cpu")
    tokens = ragged_batch()
    scores = actor.score(tokens, entropy=True)
    batch = training_batch(tokens, scores)
    gradients: dict[str, torch.Tensor] = {}
    step = actor._optimizer.step

    def spy() -> Any:
        gradients.update({name: w.grad.clone() for name, w in actor._weights.masters.items() if w.grad is not None})
        return step()

    actor._optimizer.step = spy  # type: ignore[method-assign]
    metrics = dict(actor.train_step(batch))
    half = HFActor(folder, dtype="bfloat16", device="cpu").score(tokens)
    return Truth(
        folder=folder,
        batch=batch,
        scores=scores,
        half_scores=half,
        metrics=metrics,
        gradients=file_names(gradients),
        weights=file_names({name: w.detach().clone() for name, w in actor.export_weights()}),
    )


def file_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Stacked experts taken apart into the names that model files have."""
    found = {}
    for name, weight in weights.items():
        prefix, _, kind = name.rpartition(".")
        if kind == "gate_up_proj":
            for e, both in enumerate(weight):
                found[f"{prefix}.{e}.gate_proj.weight"], found[f"{prefix}.{e}.up_proj.weight"] = both.chunk(2)
        elif kind == "down_proj":
            found |= {f"{prefix}.{e}.down_proj.weight": matrix for e, matrix in enumerate(weight)}
        else:
            found[name] = weight
    return found


def largest_gap(found: tuple[FloatArray, ...], expected: tuple[FloatArray, ...]) -> float:
    """Largest difference between two batches of per-token arrays."""
    assert [len(v) for v in found] == [len(v) for v in expected]
    return float(np.abs(np.concatenate(found) - np.concatenate(expected)).max())


def mean_gap(found: tuple[FloatArray, ...], expected: tuple[FloatArray, ...]) -> float:
    """Mean absolute difference between two batches of per-token arrays."""
    return float(np.abs(np.concatenate(found) - np.concatenate(expected)).mean())


def without_entropy(objective: PolicyObjective) -> PolicyObjective:
    """The same objective without its entropy bonus."""
    return replace(objective, entropy_bonus=EntropyConfig(coefficient=0.0))
