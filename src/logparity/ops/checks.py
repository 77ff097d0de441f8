"""Checks of the operations' options, one a function; every message says what was expected, what came, and the fix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Final

import torch
from torch import Tensor

from logparity.errors import InputError
from logparity.parallel.vocab import VocabShard

PRECISIONS: Final = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def kind_of(value: Any) -> str:
    """What came, in a word: a tensor's dtype, else the type and, where it is short, the value."""
    if isinstance(value, Tensor):
        return str(value.dtype)
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__


def is_integers(tensor: Tensor) -> bool:
    """Whether a tensor holds integers: no floats, no complex numbers, no truth values."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def is_whole(value: Any) -> bool:
    """Whether a value is an integer, of Python or numpy; True is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or numpy; True is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def vocab_shard(shard: VocabShard | None) -> None:
    """A shard is one, or None."""
    if shard is not None and not isinstance(shard, VocabShard):
        raise InputError(f"shard: expected a VocabShard(start, stop, group) or None, got {kind_of(shard)}.")


def precision(name: str, value: Tensor, axes: str) -> None:
    """A tensor is in one of the precisions that can be computed with."""
    if not isinstance(value, Tensor) or value.dtype not in PRECISIONS:
        raise InputError(
            f"{name}: expected a floating-point tensor {axes} of bfloat16, float16, float32, or float64, got "
            f"{kind_of(value)}. Cast it."
        )


def compute_dtype(value: torch.dtype | None, own: torch.dtype) -> torch.dtype:
    """The dtype of an engine's arithmetic, or that of the logits."""
    if value is not None and value not in PRECISIONS:
        raise InputError(
            f"compute_dtype: expected None (the logits' own) or one of bfloat16, float16, float32, float64, got "
            f"{value!r}. Name the dtype that the engine takes its log-softmax in."
        )
    return own if value is None else value


def flag(name: str, value: bool | None) -> bool | None:
    """An optional switch."""
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{name}: expected True, False, or None, got {kind_of(value)}.")
    return value


def ignored_id(value: int) -> int:
    """The id that asks for nothing is an integer."""
    if not is_whole(value):
        raise InputError(
            f"ignore_index: expected an integer, got {kind_of(value)}. Where nothing is ignored, keep -100."
        )
    return int(value)


def logits_tensor(logits: Tensor) -> None:
    """Logits are a floating-point tensor with a vocabulary axis."""
    if not isinstance(logits, Tensor) or logits.dtype not in PRECISIONS:
        raise InputError(
            f"logits: expected bfloat16, float16, float32, or float64, got {kind_of(logits)}. "
            "Pass the model's output before any argmax or sampling."
        )
    if logits.dim() < 1 or logits.shape[-1] == 0:
        raise InputError(f"logits: expected [tokens, vocabulary] or [.., vocabulary], got shape {list(logits.shape)}.")


def columns_match(held: int, own: tuple[int, int], name: str) -> None:
    """The vocabulary axis has the width of its shard."""
    expected = own[1] - own[0]
    if held != expected:
        raise InputError(
            f"{name}: expected {expected} vocabulary columns, the width of the shard, got {held}. "
            "VocabShard(start, stop) gives the global columns of this rank, padding included."
        )


def valid_columns(valid_vocab_size: int | None, columns: int) -> int:
    """Number of columns that are no padding."""
    if valid_vocab_size is None:
        return columns
    whole = is_whole(valid_vocab_size)
    if not whole or not 1 <= valid_vocab_size <= columns:
        got = valid_vocab_size if whole else kind_of(valid_vocab_size)
        raise InputError(
            f"valid_vocab_size: expected 1 to {columns} (the padded vocabulary, all shards), an int, got {got}."
        )
    return int(valid_vocab_size)


def target_tensor(targets: Tensor, device: torch.device) -> Tensor:
    """Targets are integers on the logits' device."""
    if not isinstance(targets, Tensor) or not is_integers(targets):
        raise InputError(f"targets: expected an int64 tensor of token ids, got {kind_of(targets)}. Pass ids, not text.")
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
    index = _indices(rows, device)
    if index.dim() != 1 or not is_integers(index):
        raise InputError(
            f"rows: expected int64 [N] indices, got {index.dtype} of shape {list(index.shape)}. "
            "Turn a mask into indices by mask.nonzero().flatten()."
        )
    if index.device != device:
        raise InputError(f"rows: expected on {device}, the logits' device, got {index.device}. Move one of them.")
    if check_values and index.numel():
        _row_values(index, leading.numel())
    return index.to(torch.int64)


def _indices(rows: Tensor | Sequence[int], device: torch.device) -> Tensor:
    try:
        index = torch.as_tensor(rows, device=None if isinstance(rows, Tensor) else device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"rows: expected int64 [N] indices, got {kind_of(rows)}. Pass a tensor or a list of ints."
        ) from error
    return index.to(torch.int64) if index.numel() == 0 else index


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
    if not isinstance(value, Tensor):
        return _one_temperature(value)
    if value.is_complex() or value.dtype == torch.bool:
        raise InputError(f"temperature: expected real numbers, got {value.dtype}. Pass a float or a float tensor.")
    if value.requires_grad:
        raise InputError("temperature: expected a constant, got a tensor that requires grad. Detach it.")
    if value.dim() == 0 and value.device.type == "cpu":
        return _one_temperature(value.item())
    if value.dim() and value.shape != targets.shape:
        raise InputError(
            f"temperature: expected a float or one per target, shape {list(targets.shape)}, got {list(value.shape)}. "
            "With rows, temperatures belong to the rows listed only."
        )
    if value.device != targets.device:
        raise InputError(
            f"temperature: expected on {targets.device}, the logits' device, got {value.device}. Move one of them."
        )
    if check_values:
        _temperature_values(value.reshape(-1))
    # One number on a device is spread over the targets there: to read it would wait for the device.
    return value.detach().expand(targets.shape).reshape(-1).to(torch.float64)


def _temperature_values(value: Tensor) -> None:
    wrong = ~(value.isfinite() & (value > 0))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise InputError(
            f"temperature: expected finite numbers > 0, got {float(value[at])} at position {at}. "
            "Greedy sampling has no log-probs under temperature 0: score it at temperature 1."
        )


def _one_temperature(value: float) -> float:
    if not is_number(value):
        raise InputError(
            f"temperature: expected a finite number > 0 or a tensor with one per target, got {kind_of(value)}. "
            "Pass a float, or torch.tensor([...])."
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
    if value is None:
        return None
    if not (is_number(value) and math.isfinite(value) and value > 0):
        got = value if is_number(value) else kind_of(value)
        raise InputError(f"{name}: expected a finite number > 0, or None for none, got {got}.")
    return float(value)


def chunk_rows(chunk_size: int | str) -> int | None:
    """An upper bound on rows, or None for automatic."""
    if chunk_size == "auto":
        return None
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise InputError(f"chunk_size: expected 'auto' or a number of rows >= 1, got {chunk_size!r}.")
    return chunk_size
