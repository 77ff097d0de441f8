"""From the configuration's algorithm to the loss and the advantages that carry it out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from logparity.losses import (
    ClipConfig,
    EntropyConfig,
    KLConfig,
    KLEstimator,
    PolicyObjective,
    grpo_advantages,
)
from logparity.records import FloatArray
from logparity.training.config import AlgorithmConfig


def objective_of(config: AlgorithmConfig) -> PolicyObjective:
    """The policy loss that a configuration describes.

    Args:
        config: clip bounds, KL, and entropy terms.

    Returns:
        A loss over response tokens; token-mean over the whole step.
    """
    return PolicyObjective(
        surrogate=ClipConfig(clip_low=config.clip_low, clip_high=config.clip_high),
        kl=KLConfig(estimator=KLEstimator(config.kl_estimator), coefficient=config.kl_coefficient),
        entropy_bonus=EntropyConfig(coefficient=config.entropy_coefficient),
    )


def advantages_of(config: AlgorithmConfig, rewards: Sequence[float | None], groups: Sequence[str]) -> FloatArray:
    """Group-relative advantages.

    Args:
        config: whether they are divided by the group's standard deviation.
        rewards: ``B`` rewards; None leaves a sample out of its group.
        groups: ``B`` prompt keys.

    Returns:
        float32 ``[B]``; 0 where the reward is None.
    """
    values = torch.tensor([0.0 if r is None else r for r in rewards], dtype=torch.float64)
    valid = torch.tensor([r is not None for r in rewards])
    advantages = grpo_advantages(values, groups, normalize_std=config.normalize_std, valid=valid)
    return np.asarray(advantages.numpy(), dtype=np.float32)
