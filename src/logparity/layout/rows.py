"""Which rows of a batch's logits predict its response tokens, for every layout of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logparity.errors import InputError
from logparity.layout.shift import response_rows
from logparity.records import BoolArray


@dataclass(frozen=True, slots=True)
class ResponseRows:
    """``N`` response tokens and the rows of the flattened logits ``[T, V]`` that predict them.

    Args:
        rows: int64 ``[N]`` in ``[0, T)``.
        sequence_ids: int64 ``[N]``: the sequence each token belongs to, ascending.
        positions: int64 ``[N]``: index of each token in its response.
    """

    rows: Tensor
    sequence_ids: Tensor
    positions: Tensor


def rows_from_starts(
    starts: Sequence[int],
    prompt_lengths: Sequence[int],
    response_lengths: Sequence[int],
    *,
    wanted: Sequence[BoolArray] | None = None,
    device: torch.device | str = "cpu",
) -> ResponseRows:
    """Index the response tokens of sequences that start at given rows.

    The shift is taken within each sequence, so no row can predict across a border.

    Args:
        starts: row of each sequence's first token.
        prompt_lengths: ``P_b >= 1``, padding on the left of a prompt included.
        response_lengths: ``R_b``; 0 gives no row.
        wanted: ``B`` bool arrays ``[R_b]``: response tokens to index; None indexes them all.
        device: where the tensors go.

    Returns:
        Rows, sequence ids, and positions.

    Raises:
        InputError: a prompt is empty, the numbers of sequences differ, or a selection has another length.
    """
    if not len(starts) == len(prompt_lengths) == len(response_lengths):
        raise InputError(
            f"sequences: expected as many starts, prompts, and responses, got {len(starts)}, {len(prompt_lengths)}, "
            f"and {len(response_lengths)}."
        )
    parts = [np.zeros((3, 0), dtype=np.int64)]
    for index, (start, prompt, response) in enumerate(zip(starts, prompt_lengths, response_lengths, strict=True)):
        local = np.asarray(response_rows(prompt, response), dtype=np.int64)
        part = np.stack([start + local, np.full(response, index, dtype=np.int64), np.arange(response)])
        parts.append(part if wanted is None else part[:, _selection(wanted, index, response)])
    rows, owners, positions = torch.from_numpy(np.concatenate(parts, axis=1)).to(device)
    return ResponseRows(rows, owners, positions)


def bshd_rows(
    prompt_width: int,
    response_lengths: Sequence[int],
    total_width: int,
    *,
    wanted: Sequence[BoolArray] | None = None,
    device: torch.device | str = "cpu",
) -> ResponseRows:
    """Index the response tokens of a batch ``[B, L]`` whose responses all start in the same column.

    Prompts are padded on the left and responses on the right, as TRL and verl lay them out.

    Args:
        prompt_width: columns of the prompts, >= 1.
        response_lengths: ``R_b``.
        total_width: ``L``, at least ``prompt_width + max(R_b)``.
        wanted: ``B`` bool arrays ``[R_b]``; None indexes them all.
        device: where the tensors go.

    Returns:
        Rows of the flattened logits ``[B * L, V]``, sequence ids, and positions.

    Raises:
        InputError: the prompt is empty or a response does not fit.
    """
    longest = max(response_lengths, default=0)
    if prompt_width + longest > total_width:
        raise InputError(f"total_width: expected at least {prompt_width + longest} columns, got {total_width}.")
    count = len(response_lengths)
    starts = [index * total_width for index in range(count)]
    return rows_from_starts(starts, [prompt_width] * count, response_lengths, wanted=wanted, device=device)


def _selection(wanted: Sequence[BoolArray], index: int, length: int) -> BoolArray:
    if len(wanted[index]) != length:
        raise InputError(f"wanted[{index}]: expected {length} values, one per response id, got {len(wanted[index])}.")
    return np.asarray(wanted[index], dtype=np.bool_)
