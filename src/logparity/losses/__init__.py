"""Losses, off-policy corrections, and advantages as pure functions with visible denominators.

A training loop assembles an objective from small frozen configs and calls it on each micro-batch:

    objective = PolicyObjective(
        surrogate=ClipConfig(clip_low=0.2, clip_high=0.28),   # or GSPOConfig(), CISPOConfig(), ReinforceConfig()
        kl=KLConfig(estimator=KLEstimator.K3, coefficient=0.0),
        entropy_bonus=EntropyConfig(coefficient=0.0),
        reduction=ReductionConfig(Reduction.TOKEN_MEAN),      # FIXED_LENGTH takes length=...
    )
    loss, metrics = objective(token_tensors, denominators)    # objective.reads names the tensors it needs

    advantages = grpo_advantages(rewards, groups, normalize_std=True, valid=not_rejected)   # one per response
"""

from __future__ import annotations

from logparity.losses.advantage import group_metrics, grpo_advantages, rloo_advantages
from logparity.losses.base import (
    Denominators,
    EntropyMode,
    LogitPrecision,
    Metrics,
    Objective,
    Ratio,
    SequenceSum,
    TokenTensors,
    merge_metrics,
)
from logparity.losses.cispo import CISPOConfig, cispo_loss
from logparity.losses.clip import ClipConfig, clip_loss
from logparity.losses.entropy import EntropyConfig, entropy_loss
from logparity.losses.gspo import GSPOConfig, gspo_loss
from logparity.losses.kl import KLConfig, KLEstimator, estimate_kl, kl_loss
from logparity.losses.policy import PolicyObjective, SurrogateConfig
from logparity.losses.reduce import Reduction, ReductionConfig, count_denominators, reduce_tokens
from logparity.losses.reinforce import ReinforceConfig, reinforce_loss
from logparity.losses.sequences import GroupSum, Sequences

__all__ = [
    "CISPOConfig",
    "ClipConfig",
    "Denominators",
    "EntropyConfig",
    "EntropyMode",
    "GSPOConfig",
    "GroupSum",
    "KLConfig",
    "KLEstimator",
    "LogitPrecision",
    "Metrics",
    "Objective",
    "PolicyObjective",
    "Ratio",
    "Reduction",
    "ReductionConfig",
    "ReinforceConfig",
    "SequenceSum",
    "Sequences",
    "SurrogateConfig",
    "TokenTensors",
    "cispo_loss",
    "clip_loss",
    "count_denominators",
    "entropy_loss",
    "estimate_kl",
    "group_metrics",
    "grpo_advantages",
    "gspo_loss",
    "kl_loss",
    "merge_metrics",
    "reduce_tokens",
    "reinforce_loss",
    "rloo_advantages",
]
