"""From the configuration's algorithm to the losses that carry it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from logparity.losses import (
    CISPOConfig,
    ClipConfig,
    CorrectionConfig,
    EntropyConfig,
    GSPOConfig,
    KLConfig,
    KLEstimator,
    Objective,
    OPSMConfig,
    PolicyObjective,
    RatioLevel,
    Reduction,
    ReductionConfig,
    ReinforceConfig,
    RejectionConfig,
    SFTObjective,
    SurrogateConfig,
    ValueConfig,
    ValueObjective,
    WeightMode,
)
from logparity.training.config import AlgorithmConfig, CorrectionSection


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Where algorithms differ: the surrogate, its clip bounds, and how tokens become one number."""

    surrogate: Callable[[float, float, float | None], SurrogateConfig]
    clip_low: float
    clip_high: float
    reduction: Reduction


_CLIPPED = _Defaults(ClipConfig, 0.2, 0.2, Reduction.TOKEN_MEAN)
_DEFAULTS: Mapping[str, _Defaults] = MappingProxyType(
    {
        "grpo": _CLIPPED,
        "dr_grpo": _Defaults(ClipConfig, 0.2, 0.2, Reduction.FIXED_LENGTH),
        "dapo": _Defaults(ClipConfig, 0.2, 0.28, Reduction.TOKEN_MEAN),
        "gspo": _Defaults(lambda low, high, _: GSPOConfig(low, high), 3e-4, 4e-4, Reduction.SEQUENCE_MEAN_TOKEN_MEAN),
        "cispo": _Defaults(lambda low, high, _: CISPOConfig(low, high), 1.0, 4.0, Reduction.TOKEN_MEAN),
        "reinforce": _Defaults(lambda *_: ReinforceConfig(), 0.2, 0.2, Reduction.TOKEN_MEAN),
        "rloo": _CLIPPED,
        "reinforce++": _CLIPPED,
        "reinforce++_baseline": _CLIPPED,
        "ppo": _CLIPPED,
    }
)


def objective_of(config: AlgorithmConfig, response_length: int) -> Objective:
    """The policy or SFT loss that a configuration describes.

    Args:
        config: the algorithm and its settings.
        response_length: longest response, the divisor of the fixed-length reduction.

    Returns:
        A loss over response tokens.

    Raises:
        ConfigError: settings contradict each other.
    """
    if config.name == "sft":
        return SFTObjective(_reduction(config, Reduction.TOKEN_MEAN, response_length), strict=config.strict)
    defaults = _DEFAULTS[config.name]
    low = defaults.clip_low if config.clip_low is None else config.clip_low
    high = defaults.clip_high if config.clip_high is None else config.clip_high
    return PolicyObjective(
        surrogate=defaults.surrogate(low, high, config.dual_clip),
        kl=KLConfig(
            estimator=KLEstimator(config.kl_estimator),
            coefficient=0.0 if config.kl_in_reward else config.kl_coefficient,
            unbiased=config.kl_unbiased,
        ),
        entropy_bonus=EntropyConfig(coefficient=config.entropy_coefficient),
        correction=_correction(config.correction),
        opsm=None if config.opsm_threshold is None else OPSMConfig(config.opsm_threshold),
        reduction=_reduction(config, defaults.reduction, response_length),
        strict=config.strict,
    )


def value_objective_of(config: AlgorithmConfig) -> ValueObjective:
    """The value loss of PPO's critic."""
    return ValueObjective(ValueConfig(clip=config.value_clip), strict=config.strict)


def _reduction(config: AlgorithmConfig, default: Reduction, response_length: int) -> ReductionConfig:
    kind = default if config.reduction is None else Reduction(config.reduction)
    return ReductionConfig(kind, length=response_length if kind is Reduction.FIXED_LENGTH else None)


def _correction(config: CorrectionSection) -> CorrectionConfig | None:
    if config.mode == "off":
        return None
    rejection = None
    if config.reject_level is not None:
        rejection = RejectionConfig(RatioLevel(config.reject_level), config.reject_low, config.reject_high)
    return CorrectionConfig(
        mode=WeightMode(config.mode),
        level=RatioLevel(config.level),
        low=config.low,
        high=config.high,
        rejection=rejection,
        token_veto=config.token_veto,
        batch_normalise=config.batch_normalise,
    )
