"""Counts over a whole optimisation step, taken before its first micro-batch."""

from __future__ import annotations

import numpy as np
import torch

from logparity.errors import InputError
from logparity.losses.base import Denominators, Objective
from logparity.losses.correction import CorrectionConfig, mean_weight_share
from logparity.losses.policy import PolicyObjective
from logparity.losses.sequences import Sequences
from logparity.records import TrainingBatch


def step_denominators(batch: TrainingBatch, objective: Objective) -> Denominators:
    """Active tokens, sequences that have any, and the mean correction weight where the objective divides by it.

    Args:
        batch: the whole step.
        objective: what is trained.

    Returns:
        The step's denominators.

    Raises:
        InputError: no token is active, or a correction lacks rollout log-probs.
    """
    masks = batch.tokens.response_mask
    tokens = batch.tokens.active_tokens
    if tokens == 0:
        raise InputError(f"batch of {len(masks)} sequences: expected at least one active token, got none.")
    correction = objective.correction if isinstance(objective, PolicyObjective) else None
    mean_weight = None
    if correction is not None and correction.batch_normalise:
        mean_weight = _mean_weight(batch, correction)
    return Denominators(tokens, sum(bool(mask.any()) for mask in masks), mean_weight)


def _mean_weight(batch: TrainingBatch, correction: CorrectionConfig) -> float | None:
    if batch.rollout_log_probs is None:
        raise InputError("rollout_log_probs: expected one array per sequence, which the correction reads, got none.")
    if batch.old_log_probs is None:
        raise InputError("old_log_probs: expected one array per sequence, which the correction reads, got none.")
    old, rollout = (torch.from_numpy(np.concatenate(side)) for side in (batch.old_log_probs, batch.rollout_log_probs))
    mask = torch.from_numpy(np.concatenate(batch.tokens.response_mask))
    lengths = torch.tensor([len(ids) for ids in batch.tokens.response_ids])
    sequences = Sequences(torch.repeat_interleave(torch.arange(len(lengths)), lengths), len(lengths))
    return mean_weight_share(old, rollout, mask, sequences, correction).value()


__all__ = ["step_denominators"]
