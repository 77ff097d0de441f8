"""The policy objective: a surrogate, a KL term, and an entropy bonus, reduced together."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from logparity.errors import InputError
from logparity.losses.base import Denominators, EntropyMode, LogitPrecision, Metrics, Ratio, TokenTensors
from logparity.losses.cispo import CISPOConfig, cispo_loss
from logparity.losses.clip import ClipConfig, clip_loss
from logparity.losses.correction import CorrectionConfig, correct
from logparity.losses.entropy import EntropyConfig, entropy_loss
from logparity.losses.gspo import GSPOConfig, gspo_loss
from logparity.losses.kl import KLConfig, kl_loss
from logparity.losses.opsm import OPSMConfig, opsm_keep
from logparity.losses.reduce import ReductionConfig, reduce_tokens
from logparity.losses.reinforce import ReinforceConfig, reinforce_loss
from logparity.losses.select import as_mask, finite_tokens, mean_over, require_same_length, select
from logparity.losses.sequences import Sequences, require_sequence_ids
from logparity.losses.settings import require_kind

SurrogateConfig = ClipConfig | GSPOConfig | CISPOConfig | ReinforceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """``surrogate + kl.coefficient * KL - entropy.coefficient * entropy``, an `Objective`.

    Args:
        surrogate: which policy-gradient loss, with its bounds.
        kl: KL term against the reference policy; left out, with the need for a reference, at coefficient 0.
        entropy_bonus: entropy bonus; left out at coefficient 0.
        correction: weights and rejection against the difference between trainer and rollout engine; None for neither.
        opsm: leave out sequences with negative advantage that the policy has moved away from; None keeps all.
        reduction: how tokens become one number.
        strict: raise `NonFiniteError` on the first NaN or infinity on an active token, which waits for the device;
            otherwise such tokens are left out of the numerators and counted in ``policy/nonfinite_fraction``.

    Raises:
        ConfigError: a part is not a config of its kind.
    """

    surrogate: SurrogateConfig = field(default_factory=ClipConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    entropy_bonus: EntropyConfig = field(default_factory=EntropyConfig)
    correction: CorrectionConfig | None = None
    opsm: OPSMConfig | None = None
    reduction: ReductionConfig = field(default_factory=ReductionConfig)
    strict: bool = False

    def __post_init__(self) -> None:
        require_kind("surrogate", self.surrogate, ClipConfig, GSPOConfig, CISPOConfig, ReinforceConfig)
        require_kind("kl", self.kl, KLConfig)
        require_kind("entropy_bonus", self.entropy_bonus, EntropyConfig)
        require_kind("correction", self.correction, CorrectionConfig, type(None))
        require_kind("opsm", self.opsm, OPSMConfig, type(None))
        require_kind("reduction", self.reduction, ReductionConfig)

    @property
    def precision(self) -> LogitPrecision:
        """Model precision: only log-probs are read."""
        return LogitPrecision.MODEL

    @property
    def entropy(self) -> EntropyMode:
        """What the entropy bonus needs."""
        return self.entropy_bonus.mode

    @property
    def temperature(self) -> float | None:
        """None: the temperature each sequence was sampled with."""
        return None

    @property
    def reads(self) -> frozenset[str]:
        """Fields of `TokenTensors` that must be given, besides the mask and the sequence ids."""
        names = {"log_probs", "advantages"}
        unbiased = self.kl.coefficient != 0 and self.kl.unbiased
        if not isinstance(self.surrogate, ReinforceConfig) or unbiased or self.correction or self.opsm:
            names.add("old_log_probs")
        if self.correction:
            names.add("rollout_log_probs")
        if self.kl.coefficient:
            names.add("ref_log_probs")
        if self.entropy_bonus.coefficient:
            names.add("entropy")
        return frozenset(names)

    def __call__(self, tokens: TokenTensors, denominators: Denominators) -> tuple[Tensor, Metrics]:
        """This micro-batch's share of the loss, and its metrics.

        Args:
            tokens: the micro-batch.
            denominators: counts over the whole step.

        Returns:
            Scalar loss with gradient, and detached metrics. A micro-batch without active tokens gives 0 with a
            gradient link.

        Raises:
            InputError: a tensor the loss reads is missing, has another length, or the mask is not 0/1.
            NonFiniteError: strict, and an active token is not finite.
        """
        mask = as_mask(tokens.mask)
        self._require(tokens)
        sequences = Sequences.of(tokens)
        active = finite_tokens(tokens, mask, tuple(sorted(self.reads)), strict=self.strict)
        metrics: dict[str, Ratio] = {"policy/nonfinite_fraction": mean_over(~active, mask)}
        losses, terms = self._token_losses(tokens, active, sequences, denominators, metrics)
        loss, metrics["loss"] = reduce_tokens(losses, mask, sequences, denominators, self.reduction)
        for name, term in terms.items():
            metrics[f"loss/{name}"] = reduce_tokens(term.detach(), mask, sequences, denominators, self.reduction)[1]
        return loss, metrics

    def _token_losses(
        self,
        tokens: TokenTensors,
        active: Tensor,
        sequences: Sequences,
        denominators: Denominators,
        metrics: dict[str, Ratio],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum of the terms per token, and each of them; adds to ``metrics``."""
        losses, found = self._surrogate(tokens, active, sequences)
        metrics.update(found)
        if self.opsm is not None:
            keep, found = opsm_keep(
                tokens.log_probs,
                _given(tokens, "old_log_probs"),
                _given(tokens, "advantages"),
                active,
                sequences,
                self.opsm,
            )
            metrics.update(found)
            losses = select(losses, keep)
        if self.correction is not None:
            correction = correct(
                _given(tokens, "old_log_probs"),
                _given(tokens, "rollout_log_probs"),
                active,
                sequences,
                self.correction,
                mean_weight=denominators.mean_weight,
            )
            metrics.update(correction.metrics)
            active = correction.keep
            losses = select(losses * correction.weights, active)
        terms = {"surrogate": losses}
        if self.kl.coefficient and tokens.ref_log_probs is not None:
            kl, found = kl_loss(
                tokens.log_probs, tokens.ref_log_probs, active, self.kl, old_log_probs=tokens.old_log_probs
            )
            metrics.update(found)
            terms["kl"] = self.kl.coefficient * kl
        if tokens.entropy is not None and self.entropy is not EntropyMode.NONE:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.entropy is EntropyMode.GRAD):
                bonus, found = entropy_loss(tokens.entropy, active)
            metrics.update(found)
            if self.entropy is EntropyMode.GRAD:
                terms["entropy"] = self.entropy_bonus.coefficient * bonus
        return torch.stack(tuple(terms.values())).sum(0) if len(terms) > 1 else losses, terms

    def _surrogate(self, tokens: TokenTensors, active: Tensor, sequences: Sequences) -> tuple[Tensor, Metrics]:
        config, advantages, old = self.surrogate, _given(tokens, "advantages"), tokens.old_log_probs
        if isinstance(config, ReinforceConfig):
            return reinforce_loss(tokens.log_probs, advantages, active)
        old = _given(tokens, "old_log_probs")
        if isinstance(config, GSPOConfig):
            return gspo_loss(tokens.log_probs, old, advantages, active, sequences, config)
        if isinstance(config, CISPOConfig):
            return cispo_loss(tokens.log_probs, old, advantages, active, config)
        return clip_loss(tokens.log_probs, old, advantages, active, config)

    def _require(self, tokens: TokenTensors) -> None:
        read = {name: _given(tokens, name) for name in sorted(self.reads, key=lambda name: name != "log_probs")}
        require_same_length(**read, mask=tokens.mask, sequence_ids=tokens.sequence_ids)
        require_sequence_ids(tokens)


def _given(tokens: TokenTensors, name: str) -> Tensor:
    values: Tensor | None = getattr(tokens, name)
    if values is None:
        raise InputError(f"{name}: expected a tensor [{tokens.mask.numel()}], which this loss reads, got none.")
    return values
