"""Ragged sequences as one right-padded ``[B, L]`` batch, with the flat rows that predict response tokens.

Padding sits on the right: under causal attention no real token looks at it, so the batch needs no attention mask and
every token keeps the position it has when its sequence is alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from logparity.errors import InputError
from logparity.layout.shift import response_rows
from logparity.records import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """``B`` sequences padded on the right to ``L`` tokens, and the ``N`` response tokens picked from them.

    Args:
        input_ids: int64 ``[B, L]``: prompt, response, padding.
        rows: int64 ``[N]``: rows of the flattened ``[B * L]`` positions that predict the targets.
        targets: int64 ``[N]``: response token ids, sequence by sequence.
        sequence_ids: int64 ``[N]``: the sequence each target belongs to, ascending.
        positions: int64 ``[N]``: index of each target in its response.
    """

    input_ids: Tensor
    rows: Tensor
    targets: Tensor
    sequence_ids: Tensor
    positions: Tensor


def pad_sequences(
    prompt_ids: Sequence[IntArray],
    response_ids: Sequence[IntArray],
    *,
    wanted: Sequence[BoolArray] | None = None,
    pad_id: int = 0,
    device: torch.device | str = "cpu",
) -> PaddedBatch:
    """Lay sequences side by side, padded on the right, and index their response tokens.

    Args:
        prompt_ids: ``B`` int64 arrays ``[P_b]``, each ``P_b >= 1``.
        response_ids: ``B`` int64 arrays ``[R_b]``; empty ones are legal.
        wanted: ``B`` bool arrays ``[R_b]``: response tokens to index; None indexes them all.
        pad_id: id written into the padding; which one does not matter.
        device: where the tensors go.

    Returns:
        The padded batch.

    Raises:
        InputError: the batch is empty, a prompt is empty, or a selection's length differs from its response.
    """
    if len(prompt_ids) == 0:
        raise InputError("sequences: expected at least one, got none.")
    lengths = [len(p) + len(r) for p, r in zip(prompt_ids, response_ids, strict=True)]
    width = max(lengths)
    ids = np.full((len(lengths), width), pad_id, dtype=np.int64)
    rows, targets, owners, positions = [], [], [], []
    for b, (prompt, response) in enumerate(zip(prompt_ids, response_ids, strict=True)):
        ids[b, : len(prompt)] = prompt
        ids[b, len(prompt) : lengths[b]] = response
        local = np.asarray(response_rows(len(prompt), len(response)), dtype=np.int64)
        keep = np.ones(len(response), dtype=np.bool_) if wanted is None else wanted[b]
        if len(keep) != len(response):
            raise InputError(f"wanted[{b}]: expected {len(response)} values, one per response id, got {len(keep)}.")
        rows.append(b * width + local[keep])
        targets.append(np.asarray(response, dtype=np.int64)[keep])
        owners.append(np.full(int(keep.sum()), b, dtype=np.int64))
        positions.append(np.flatnonzero(keep))
    return PaddedBatch(
        input_ids=torch.from_numpy(ids).to(device),
        rows=torch.from_numpy(np.concatenate(rows)).to(device),
        targets=torch.from_numpy(np.concatenate(targets)).to(device),
        sequence_ids=torch.from_numpy(np.concatenate(owners)).to(device),
        positions=torch.from_numpy(np.concatenate(positions)).to(device),
    )


def split_by_response(values: Tensor, response_ids: Sequence[IntArray]) -> list[FloatArray]:
    """Cut flat per-token values ``[N]`` back into one float32 array per response.

    Args:
        values: ``[N]``, ``N`` the sum of response lengths, sequence by sequence.
        response_ids: the ``B`` responses that the values belong to.

    Returns:
        ``B`` float32 arrays ``[R_b]``.

    Raises:
        InputError: the number of values is not the number of response tokens.
    """
    lengths = [len(r) for r in response_ids]
    if values.numel() != sum(lengths):
        raise InputError(f"values: expected {sum(lengths)}, one per response token, got {values.numel()}.")
    flat = values.detach().to("cpu", torch.float32).numpy()
    return [part.copy() for part in np.split(flat, np.cumsum(lengths)[:-1])]


__all__ = ["PaddedBatch", "pad_sequences", "split_by_response"]
