"""Batches of flat token tensors for the loss tests."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from logparity.losses import (
    CISPOConfig,
    ClipConfig,
    CorrectionConfig,
    EntropyConfig,
    GSPOConfig,
    KLConfig,
    OPSMConfig,
    PolicyObjective,
    RatioLevel,
    Reduction,
    ReductionConfig,
    ReinforceConfig,
    RejectionConfig,
    SFTObjective,
    TokenTensors,
    WeightMode,
)

REDUCTIONS = {kind.value: ReductionConfig(kind, 12 if kind is Reduction.FIXED_LENGTH else None) for kind in Reduction}

OBJECTIVES: dict[str, PolicyObjective | SFTObjective] = {
    "clip": PolicyObjective(surrogate=ClipConfig(0.2, 0.28)),
    "dual_clip": PolicyObjective(surrogate=ClipConfig(0.1, 0.1, dual_clip=1.2)),
    "gspo": PolicyObjective(surrogate=GSPOConfig(0.03, 0.04), reduction=REDUCTIONS["sequence_mean_token_mean"]),
    "cispo": PolicyObjective(surrogate=CISPOConfig(1.0, 0.3)),
    "reinforce": PolicyObjective(surrogate=ReinforceConfig(), reduction=REDUCTIONS["sequence_mean_token_sum"]),
    "opsm": PolicyObjective(opsm=OPSMConfig(0.05), reduction=REDUCTIONS["fixed_length"]),
    "kl": PolicyObjective(kl=KLConfig("k3", 0.1, unbiased=True), reduction=REDUCTIONS["sequence_mean_token_mean"]),
    "entropy": PolicyObjective(entropy_bonus=EntropyConfig(0.01)),
    "tis": PolicyObjective(correction=CorrectionConfig()),
    "sequence_mis": PolicyObjective(
        correction=CorrectionConfig(
            WeightMode.MASK, RatioLevel.SEQUENCE, 0.2, 5.0, RejectionConfig(RatioLevel.GEOMETRIC, 0.6, 1.5), 0.05
        )
    ),
    "sft": SFTObjective(REDUCTIONS["sequence_mean_token_mean"]),
}


def random_tokens(
    lengths: tuple[int, ...] = (7, 4, 0, 6, 1, 5),
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    hole: bool = True,
) -> TokenTensors:
    """Ratios on both sides of the bounds; with ``hole`` some tokens are inactive, and one whole sequence."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))

    def normal(scale: float) -> Tensor:
        return (torch.randn(ids.numel(), generator=generator, dtype=torch.float64) * scale).to(dtype)

    mask = torch.ones(ids.numel(), dtype=torch.bool)
    if hole:
        mask[torch.arange(ids.numel()) % 5 == 3] = False
        mask[ids == 1] = False
    old = -normal(1.5).abs() - 0.05
    return TokenTensors(
        log_probs=(old + normal(0.5)).requires_grad_(),
        mask=mask,
        sequence_ids=ids,
        num_sequences=len(lengths),
        old_log_probs=old,
        advantages=normal(1.0),
        ref_log_probs=old + normal(0.4),
        rollout_log_probs=old + normal(0.6),
        entropy=normal(1.0).abs().requires_grad_(),
        keys=tuple(f"sample-{i}" for i in range(len(lengths))),
    )


def token_fields(tokens: TokenTensors) -> dict[str, Tensor]:
    """The ``[N]`` tensors of a micro-batch, by name."""
    found = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def take(tokens: TokenTensors, chosen: Tensor, sequences: list[int]) -> TokenTensors:
    """The tokens at ``chosen``, as a micro-batch of the sequences listed, on fresh leaves."""
    numbers = {old: new for new, old in enumerate(sequences)}
    parts: dict[str, Any] = {}
    for name, value in token_fields(tokens).items():
        part = value.detach()[chosen].clone()
        parts[name] = part.requires_grad_() if value.requires_grad else part
    renamed = [numbers[int(i)] for i in parts["sequence_ids"]]
    parts["sequence_ids"] = torch.tensor(renamed, dtype=torch.int64)
    keys = None if tokens.keys is None else tuple(tokens.keys[i] for i in sequences)
    return replace(tokens, **parts, num_sequences=len(sequences), keys=keys)
