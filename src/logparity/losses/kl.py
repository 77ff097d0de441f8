"""Penalty on the KL divergence from a reference policy, estimated on the sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from logparity.errors import ConfigError
from logparity.losses.base import Metrics
from logparity.losses.select import bounded_exp, fixed, mean_over, select
from logparity.losses.settings import as_choice, require_numbers
from logparity.notation import MAX_LOG_RATIO

_LARGEST_K3 = 10.0


class KLEstimator(str, Enum):
    """Estimate of ``KL(policy, reference)`` from one token; ``d = log_probs - ref_log_probs``.

    Source: Schulman, "Approximating KL divergence" (2020), http://joschu.net/blog/kl-approx.html.
    """

    K1 = "k1"
    """``d``: unbiased, high variance, may be negative; as a loss its gradient is not that of the KL."""
    K2 = "k2"
    """``d ** 2 / 2``: biased, low variance; its gradient is that of the KL on on-policy samples."""
    K3 = "k3"
    """``exp(-d) - 1 + d``: unbiased, never negative. ``d`` is clamped to +-20 and the result to at most 10."""


@dataclass(frozen=True, slots=True)
class KLConfig:
    """The KL term of a policy loss.

    Args:
        estimator: which estimate.
        coefficient: factor of the term in the loss, >= 0; 0 leaves it out and needs no reference.
        unbiased: multiply by ``exp(log_probs - old_log_probs)``, with gradient, so that value and gradient are those
            of the KL of the present policy although the tokens came from the old one.

    Raises:
        ConfigError: there is no such estimator, or the coefficient is negative or not finite.

    Source: k3 in GRPO, arXiv:2402.03300, eq. 4; unbiased, DeepSeek-V3.2, arXiv:2512.02556, section 3.1.
    """

    estimator: KLEstimator = KLEstimator.K3
    coefficient: float = 0.0
    unbiased: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "estimator", as_choice(KLEstimator, self.estimator, "estimator of the KL term"))
        require_numbers(coefficient=self.coefficient)
        if not 0 <= self.coefficient < float("inf"):
            raise ConfigError(f"coefficient of the KL term: expected a finite number >= 0, got {self.coefficient}.")


def kl_loss(
    log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, config: KLConfig, *, old_log_probs: Tensor | None = None
) -> tuple[Tensor, Metrics]:
    """KL estimate per token, before the coefficient.

    Args:
        log_probs: ``[N]``, nats, with gradient.
        ref_log_probs: ``[N]``, nats; fixed, as are the old ones: no gradient reaches either.
        mask: bool ``[N]``; other tokens may hold anything.
        config: estimator and correction.
        old_log_probs: ``[N]``, nats; read only with ``unbiased``.

    Returns:
        Estimates ``[N]``, 0 outside the mask, and their mean.

    Raises:
        ConfigError: ``unbiased`` without ``old_log_probs``.
    """
    policy = select(log_probs, mask)
    values = estimate_kl(policy - fixed(ref_log_probs, mask), config.estimator)
    if config.unbiased:
        if old_log_probs is None:
            raise ConfigError("old_log_probs: expected the log-probs before the update for an unbiased KL, got none.")
        values = values * bounded_exp(policy - fixed(old_log_probs, mask))[0]
    return values, {"kl/reference": mean_over(values, mask)}


def estimate_kl(log_ratio: Tensor, estimator: KLEstimator) -> Tensor:
    """One of the estimates, from ``log_ratio = log_probs - ref_log_probs`` ``[N]`` in nats."""
    if estimator is KLEstimator.K1:
        return log_ratio
    if estimator is KLEstimator.K2:
        return log_ratio.square() / 2
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-bounded).expm1() + bounded).clamp(max=_LARGEST_K3)
