"""From rewards to what every response token is trained with: advantages, and returns for a value model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logparity.losses import (
    KLEstimator,
    estimate_kl,
    gae,
    grpo_advantages,
    reinforce_plus_plus_advantages,
    reinforce_plus_plus_baseline_advantages,
    rloo_advantages,
    token_rewards,
    whiten,
)
from logparity.records import FloatArray, TokenBatch
from logparity.training.config import AlgorithmConfig

TokenArrays = tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True)
class Signal:
    """What a step trains with.

    Args:
        advantages: ``B`` float32 arrays ``[R_b]``; 0 on inactive tokens and on samples without a reward.
        returns: ``B`` float32 arrays ``[R_b]`` for a value model; None without one.
    """

    advantages: TokenArrays
    returns: TokenArrays | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Per-token numbers that some algorithms build their signal from; ``B`` arrays ``[R_b]`` each.

    Args:
        old_log_probs: nats, policy before the update.
        ref_log_probs: nats, reference policy; None without a KL term.
        values: of the value model; None without one.
    """

    old_log_probs: TokenArrays
    ref_log_probs: TokenArrays | None = None
    values: TokenArrays | None = None


def training_signal(
    config: AlgorithmConfig, batch: TokenBatch, groups: Sequence[str], rewards: Sequence[float | None], scores: Scores
) -> Signal:
    """Form the signal that the configured algorithm trains with.

    Args:
        config: the algorithm.
        batch: the ``B`` sampled sequences.
        groups: ``B`` prompt keys.
        rewards: ``B`` rewards; None leaves a sample out of every baseline.
        scores: per-token numbers.

    Returns:
        Advantages of every response token, and returns with a value model.
    """
    flat = _Flat(batch, rewards)
    if config.name in ("reinforce++", "ppo"):
        return _from_token_rewards(config, flat, scores)
    values, valid = flat.rewards, flat.valid
    if config.name == "reinforce++_baseline":
        tokens = reinforce_plus_plus_baseline_advantages(values, groups, flat.mask, flat.ids, valid=valid)
        return Signal(flat.split(tokens))
    if config.name == "rloo":
        per_sequence = rloo_advantages(values, groups, valid=valid)
    else:
        centred_only = config.name in ("dr_grpo", "reinforce")
        per_sequence = grpo_advantages(values, groups, normalize_std=not centred_only, valid=valid)
    return Signal(flat.split(torch.where(flat.mask, per_sequence[flat.ids], 0.0)))


def _from_token_rewards(config: AlgorithmConfig, flat: _Flat, scores: Scores) -> Signal:
    """Algorithms with a reward per token: that of the sequence on its last one, less the KL where it is asked for."""
    kept = flat.mask & flat.valid[flat.ids]
    kl = None
    if config.kl_in_reward and scores.ref_log_probs is not None:
        old, reference = flat.join(scores.old_log_probs), flat.join(scores.ref_log_probs)
        kl = estimate_kl(old - reference, KLEstimator(config.kl_estimator))
    rewards = token_rewards(flat.rewards, kept, flat.ids, kl=kl, coefficient=config.kl_coefficient)
    if scores.values is None:
        return Signal(flat.split(reinforce_plus_plus_advantages(rewards, kept, flat.ids, gamma=config.gamma)))
    values = flat.join(scores.values)
    advantages, returns = gae(rewards, values, kept, flat.ids, gamma=config.gamma, lam=config.gae_lambda)
    return Signal(flat.split(whiten(advantages, kept)), flat.split(returns))


class _Flat:
    """A ragged batch as flat tensors ``[N]`` over all response tokens, and back."""

    def __init__(self, batch: TokenBatch, rewards: Sequence[float | None]) -> None:
        lengths = [len(ids) for ids in batch.response_ids]
        self._ends = np.cumsum(lengths)[:-1]
        self.ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        self.mask = torch.from_numpy(np.concatenate(batch.response_mask))
        self.rewards = torch.tensor([0.0 if r is None else r for r in rewards], dtype=torch.float64)
        self.valid = torch.tensor([r is not None for r in rewards])

    def join(self, arrays: TokenArrays) -> Tensor:
        """Float64 ``[N]``."""
        return torch.from_numpy(np.concatenate(arrays).astype(np.float64))

    def split(self, values: Tensor) -> TokenArrays:
        """One float32 array per sequence."""
        return tuple(np.split(values.numpy().astype(np.float32), self._ends))
