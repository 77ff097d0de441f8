"""Ragged sequences packed into one row ``[1, T]`` without padding between unlike lengths (thd)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logparity.errors import InputError
from logparity.layout.rows import ResponseRows, rows_from_starts
from logparity.records import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """``B`` sequences one after another in ``T`` tokens, each padded at its end to a multiple.

    Args:
        input_ids: int64 ``[1, T]``.
        position_ids: int64 ``[1, T]``: index of each token in its sequence, counted on through its padding.
        cu_seqlens: int32 ``[B + 1]``: where each sequence starts, padding included; the last entry is ``T``.
        lengths: length of each sequence without its padding.
        responses: response tokens and the rows of the logits ``[1, T, V]`` (flattened to ``[T, V]``) that predict them.
        targets: int64 ``[N]``: response token ids.
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    responses: ResponseRows
    targets: Tensor

    @property
    def max_length(self) -> int:
        """Longest sequence, padding included: what variable-length attention asks for."""
        return int(self.cu_seqlens.diff().max())


def pack_sequences(
    prompt_ids: Sequence[IntArray],
    response_ids: Sequence[IntArray],
    *,
    wanted: Sequence[BoolArray] | None = None,
    multiple: int = 1,
    pad_id: int = 0,
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """Pack sequences and index their response tokens.

    Args:
        prompt_ids: ``B`` int64 arrays ``[P_b]``, each ``P_b >= 1``.
        response_ids: ``B`` int64 arrays ``[R_b]``; empty ones are legal.
        wanted: ``B`` bool arrays ``[R_b]``: response tokens to index; None indexes them all.
        multiple: each sequence is padded at its end to a multiple of this, e.g. ``2 * cp`` for the zigzag split.
        pad_id: id written into the padding; which one does not matter under causal attention.
        device: where the tensors go.

    Returns:
        The packed batch.

    Raises:
        InputError: the batch or a prompt is empty, ``multiple < 1``, or lengths disagree.
    """
    if len(prompt_ids) == 0:
        raise InputError("sequences: expected at least one, got none.")
    if multiple < 1:
        raise InputError(f"multiple: expected an integer >= 1, got {multiple}.")
    if len(prompt_ids) != len(response_ids):
        raise InputError(f"response_ids: expected {len(prompt_ids)} arrays, one per prompt, got {len(response_ids)}.")
    lengths = [len(p) + len(r) for p, r in zip(prompt_ids, response_ids, strict=True)]
    extents = [-(-length // multiple) * multiple for length in lengths]
    starts = np.concatenate([[0], np.cumsum(extents)]).astype(np.int64)
    ids = np.full(int(starts[-1]), pad_id, dtype=np.int64)
    for start, prompt, response in zip(starts[:-1], prompt_ids, response_ids, strict=True):
        ids[start : start + len(prompt) + len(response)] = np.concatenate([prompt, response])
    responses = rows_from_starts(
        starts[:-1].tolist(), [len(p) for p in prompt_ids], [len(r) for r in response_ids], wanted=wanted, device=device
    )
    positions = np.arange(len(ids)) - np.repeat(starts[:-1], extents)
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in response_ids])])[:-1]
    flat = torch.from_numpy(np.concatenate([np.asarray(r, dtype=np.int64) for r in response_ids])).to(device)
    picked = torch.from_numpy(offsets).to(device)[responses.sequence_ids] + responses.positions
    return PackedBatch(
        input_ids=torch.from_numpy(ids)[None].to(device),
        position_ids=torch.from_numpy(positions)[None].to(device),
        cu_seqlens=torch.from_numpy(starts.astype(np.int32)).to(device),
        lengths=tuple(lengths),
        responses=responses,
        targets=flat[picked],
    )
