"""Checks of the operations' options, one a function; every message says what was expected, what came, and the fix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from logparity.errors import InputError


def logits_tensor(logits: Tensor) -> None:
    """Logits are a floating-point tensor with a vocabulary axis."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"logits: expected bfloat16, float16, float32, or float64, got {got}. "
            "Pass the model's output before any argmax or sampling."
        )
    if logits.dim() < 1 or logits.shape[-1] == 0:
        raise InputError(f"logits: expected [tokens, vocabulary] or [.., vocabulary], got shape {list(logits.shape)}.")


def columns_match(held: int, expected: int, name: str) -> None:
    """The vocabulary axis has the width of its shard."""
    if held != expected:
        raise InputError(
            f"{name}: expected {expected} vocabulary columns, the width of the shard, got {held}. "
            "VocabShard(start, stop) gives the global columns of this rank, padding included."
        )


def valid_columns(valid_vocab_size: int | None, columns: int) -> int:
    """Number of columns that are no padding."""
    if valid_vocab_size is None:
        return columns
    if not 1 <= valid_vocab_size <= columns:
        raise InputError(
            f"valid_vocab_size: expected 1 to {columns} (the padded vocabulary, all shards), got {valid_vocab_size}."
        )
    return int(valid_vocab_size)


def target_tensor(targets: Tensor, device: torch.device) -> Tensor:
    """Targets are integers on the logits' device."""
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dtype == torch.bool:
        got = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise InputError(f"targets: expected an int64 tensor of token ids, got {got}.")
    if targets.device != device:
        raise InputError(f"targets: expected on {device}, the logits' device, got {targets.device}. Move one of them.")
    return targets.to(torch.int64)


def target_shape(targets: Tensor, leading: torch.Size, rows: Tensor | None) -> None:
    """One target per row of logits, or per entry of ``rows``."""
    if rows is not None:
        if targets.numel() != rows.numel():
            raise InputError(
                f"targets: expected {rows.numel()}, one per entry of rows, got shape {list(targets.shape)}. "
                "With rows, targets, temperature, and support belong to the rows listed only."
            )
    elif targets.shape != leading:
        raise InputError(
            f"targets: expected shape {list(leading)}, one per row of logits, got {list(targets.shape)}. "
            "Row i predicts targets[i]: shift by one before the call, or name the rows by rows=."
        )


def target_values(targets: Tensor, columns: int, ignore_index: int) -> None:
    """Targets are ids of the vocabulary."""
    outside = ((targets < 0) | (targets >= columns)) & (targets != ignore_index)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise InputError(
            f"targets: expected ids in [0, {columns}) or ignore_index={ignore_index}, got {int(targets[at])} at "
            f"position {at} ({int(outside.sum())} in all): on no shard. Check padding ids and valid_vocab_size."
        )


def row_index(
    rows: Tensor | Sequence[int] | None, leading: torch.Size, device: torch.device, *, check_values: bool
) -> Tensor | None:
    """Rows are distinct indices of logits rows."""
    if rows is None:
        return None
    index = torch.as_tensor(rows, device=None if isinstance(rows, Tensor) else device)
    if index.numel() == 0:
        index = index.to(torch.int64)
    if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"rows: expected int64 [N] indices, got {index.dtype} of shape {list(index.shape)}. "
            "Turn a mask into indices by mask.nonzero().flatten()."
        )
    if index.device != device:
        raise InputError(f"rows: expected on {device}, the logits' device, got {index.device}. Move one of them.")
    if check_values and index.numel():
        _row_values(index, leading.numel())
    return index.to(torch.int64)


def _row_values(index: Tensor, count: int) -> None:
    outside = (index < 0) | (index >= count)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise InputError(f"rows: expected indices in [0, {count}), got {int(index[at])} at position {at}.")
    ordered = index.sort().values
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.numel():
        raise InputError(
            f"rows: expected every row once, got row {int(twice[0])} again. A row holds one gradient; "
            "score several targets of a row in several calls."
        )


def temperature(value: float | Tensor, targets: Tensor, *, check_values: bool) -> float | Tensor:
    """Temperature is a finite number > 0, or one such per target: a float, or detached float64 ``[N]``."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return _one_temperature(value)
    if value.requires_grad:
        raise InputError("temperature: expected a constant, got a tensor that requires grad. Detach it.")
    if value.shape != targets.shape:
        raise InputError(
            f"temperature: expected a float or one per target, shape {list(targets.shape)}, got {list(value.shape)}."
        )
    if value.device != targets.device:
        raise InputError(f"temperature: expected on {targets.device}, the logits' device, got {value.device}.")
    if check_values:
        wrong = ~(value.isfinite() & (value > 0)).reshape(-1)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise InputError(
                f"temperature: expected finite numbers > 0, got {float(value.reshape(-1)[at])} at position {at}. "
                "Greedy sampling has no log-probs under temperature 0: score it at temperature 1."
            )
    return value.detach().reshape(-1).to(torch.float64)


def _one_temperature(value: float | Tensor) -> float:
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise InputError("temperature: expected a constant, got a tensor that requires grad. Detach it.")
        if value.device.type != "cpu":
            raise InputError(
                "temperature: expected a float or one per target, got a 0-d tensor on a device. Use a float."
            )
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise InputError(
            f"temperature: expected a finite number > 0, got {number}. "
            "Greedy sampling has no log-probs under temperature 0: score it at temperature 1."
        )
    return number


def positive(name: str, value: float | None) -> float | None:
    """An optional factor is a finite number > 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: expected a finite number > 0, or None for none, got {value}.")
    return None if value is None else float(value)


def chunk_rows(chunk_size: int | str) -> int | None:
    """An upper bound on rows, or None for automatic."""
    if chunk_size == "auto":
        return None
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise InputError(f"chunk_size: expected 'auto' or a number of rows >= 1, got {chunk_size!r}.")
    return chunk_size
