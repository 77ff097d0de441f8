"""The lists of per-sample tensors that miles and slime train on, as the two sides of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logparity.errors import InputError
from logparity.probe.arrays import as_float32, as_mask
from logparity.probe.pairs import TokenPairs

if TYPE_CHECKING:
    from torch import Tensor


def sample_pairs(data: Mapping[str, Any]) -> TokenPairs:
    """Pad a rank's samples to one batch.

    Args:
        data: ``rollout_log_probs``, ``log_probs``, ``loss_masks``: ``B`` sequences of ``R_b`` values;
            ``sample_indices``, where present, gives the keys.

    Returns:
        The pairs.

    Raises:
        InputError: an entry is missing, or a sample's lengths differ (under context parallelism log-probs are split
            and masks are not).
    """
    names = ("rollout_log_probs", "log_probs", "loss_masks")
    if missing := [name for name in names if not data.get(name)]:
        raise InputError(
            f"rollout_data: expected {', '.join(names)}, got no {', no '.join(missing)}. log_probs are there when the "
            "trainer scores before it trains (no --use-rollout-logprobs); rollout_log_probs when the engine reports "
            "them."
        )
    rollout = [as_float32(value, "rollout_log_probs") for value in data["rollout_log_probs"]]
    train = [as_float32(value, "log_probs") for value in data["log_probs"]]
    masks = [as_mask(value, "loss_masks") for value in data["loss_masks"]]
    if not len(rollout) == len(train) == len(masks):
        raise InputError(f"rollout_data: expected as many of each, got {len(rollout)}, {len(train)}, {len(masks)}.")
    shape = (len(rollout), max(len(value) for value in masks))
    left, right, mask = np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
    for row, (a, b, m) in enumerate(zip(rollout, train, masks, strict=True)):
        if not a.shape == b.shape == m.shape:
            raise InputError(
                f"sample {row}: expected rollout_log_probs, log_probs and loss_masks of one length, got {a.shape}, "
                f"{b.shape}, {m.shape}. Under context parallelism compare per micro-batch: observe_tis."
            )
        left[row, : len(a)], right[row, : len(b)], mask[row, : len(m)] = a, b, m
    indices = data.get("sample_indices")
    keys = None if indices is None else tuple(str(int(index)) for index in indices)
    return TokenPairs(left, right, mask, keys, mask_name="loss_masks")


def flat_pairs(train: Sequence[Tensor], rollout: Sequence[Tensor]) -> dict[str, Tensor]:
    """``|dp|`` and ``|log_ratio|`` of every token of a micro-batch, on its device, without waiting for it.

    Args:
        train: one ``[R_b]`` per sequence, nats.
        rollout: the same from the engine.

    Returns:
        ``logparity_prob_diff`` and ``logparity_log_ratio_abs``, float32 ``[sum R_b]`` without gradient.

    Raises:
        InputError: lengths differ.
    """
    import torch

    lengths = [tuple(value.shape) for value in train]
    if lengths != [tuple(value.shape) for value in rollout]:
        raise InputError(
            f"rollout_log_probs: expected lengths {lengths[:4]}, as train_log_probs, got "
            f"{[tuple(value.shape) for value in rollout][:4]}."
        )
    with torch.no_grad():
        ours, engine = (torch.cat([value.detach().float() for value in side]) for side in (train, rollout))
        return {
            "logparity_prob_diff": (engine.exp() - ours.exp()).abs(),
            "logparity_log_ratio_abs": (ours - engine).abs(),
        }


__all__ = ["flat_pairs", "sample_pairs"]
