"""Losses, off-policy corrections, and advantages as pure functions with visible denominators.

A training loop assembles an objective from small frozen configs and calls it on each micro-batch:

    objective = PolicyObjective(
        surrogate=ClipConfig(clip_low=0.2, clip_high=0.28),   # or GSPOConfig(), CISPOConfig(), ReinforceConfig()
        kl=KLConfig(estimator=KLEstimator.K3, coefficient=0.0),
        entropy_bonus=EntropyConfig(coefficient=0.0),
        correction=None,                                      # CorrectionConfig() is TIS, CorrectionConfig.icepop()
        opsm=None,                                            # OPSMConfig()
        reduction=ReductionConfig(Reduction.TOKEN_MEAN),      # FIXED_LENGTH takes length=...
    )
    loss, metrics = objective(token_tensors, denominators)    # objective.reads names the tensors it needs

    advantages = grpo_advantages(rewards, groups, normalize_std=True, valid=not_rejected)   # one per response

`SFTObjective` and `ValueObjective` are called the same way. Per-token advantages: `gae` with `token_rewards`,
`reinforce_plus_plus_advantages`; `whiten` over the step. Sequences that lie on several context-parallel ranks need
`TokenTensors.sequence_sum`, e.g. ``GroupSum(group)``.
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
    ValueTensors,
    merge_metrics,
)
from logparity.losses.cispo import CISPOConfig, cispo_loss
from logparity.losses.clip import ClipConfig, clip_loss
from logparity.losses.correction import (
    Correction,
    CorrectionConfig,
    RatioLevel,
    RejectionConfig,
    WeightMode,
    correct,
    mean_weight_share,
)
from logparity.losses.entropy import EntropyConfig, entropy_loss
from logparity.losses.gspo import GSPOConfig, gspo_loss
from logparity.losses.kl import KLConfig, KLEstimator, estimate_kl, kl_loss
from logparity.losses.opsm import OPSMConfig, opsm_keep
from logparity.losses.policy import PolicyObjective, SurrogateConfig
from logparity.losses.reduce import Reduction, ReductionConfig, count_denominators, reduce_tokens
from logparity.losses.reinforce import ReinforceConfig, reinforce_loss
from logparity.losses.reinforce_plus_plus import (
    reinforce_plus_plus_advantages,
    reinforce_plus_plus_baseline_advantages,
)
from logparity.losses.returns import discounted_returns, gae, token_rewards
from logparity.losses.sequences import GroupSum, Sequences
from logparity.losses.sft import SFTObjective, sft_loss
from logparity.losses.value import ValueConfig, ValueObjective, value_loss
from logparity.losses.whiten import whiten

__all__ = [
    "CISPOConfig",
    "ClipConfig",
    "Correction",
    "CorrectionConfig",
    "Denominators",
    "EntropyConfig",
    "EntropyMode",
    "GSPOConfig",
    "GroupSum",
    "KLConfig",
    "KLEstimator",
    "LogitPrecision",
    "Metrics",
    "OPSMConfig",
    "Objective",
    "PolicyObjective",
    "Ratio",
    "RatioLevel",
    "Reduction",
    "ReductionConfig",
    "ReinforceConfig",
    "RejectionConfig",
    "SFTObjective",
    "SequenceSum",
    "Sequences",
    "SurrogateConfig",
    "TokenTensors",
    "ValueConfig",
    "ValueObjective",
    "ValueTensors",
    "WeightMode",
    "cispo_loss",
    "clip_loss",
    "correct",
    "count_denominators",
    "discounted_returns",
    "entropy_loss",
    "estimate_kl",
    "gae",
    "group_metrics",
    "grpo_advantages",
    "gspo_loss",
    "kl_loss",
    "mean_weight_share",
    "merge_metrics",
    "opsm_keep",
    "reduce_tokens",
    "reinforce_loss",
    "reinforce_plus_plus_advantages",
    "reinforce_plus_plus_baseline_advantages",
    "rloo_advantages",
    "sft_loss",
    "token_rewards",
    "value_loss",
    "whiten",
]
