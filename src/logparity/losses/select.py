"""Keep inactive tokens out of the arithmetic.

``NaN * 0`` is NaN, in the loss and again in its gradient. So a token that does not count is replaced by a neutral
value with ``where`` before anything is computed from it; its gradient is then exactly 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.errors import InputError, NonFiniteError
from logparity.losses.base import Ratio, SequenceSum, TokenTensors, ValueTensors
from logparity.notation import MAX_LOG_RATIO


def select(values: Tensor, mask: Tensor) -> Tensor:
    """Values where ``mask`` holds and 0 elsewhere, in float32 or wider.

    Args:
        values: ``[N]``, may hold anything where ``mask`` is False.
        mask: bool ``[N]``.

    Returns:
        ``[N]``; the gradient of unselected values is exactly 0.

    Raises:
        InputError: one is no tensor, the mask is not bool, or the shapes differ.
    """
    _require_tensor(values, "values")
    _require_tensor(mask, "mask")
    if mask.dtype != torch.bool or values.shape != mask.shape:
        raise InputError(
            f"expected a bool mask with one entry per value, got {mask.dtype} {tuple(mask.shape)} for values "
            f"{tuple(values.shape)}. Flatten both in the same token order."
        )
    return torch.where(mask, widen(values), 0.0)


def fixed(values: Tensor, mask: Tensor) -> Tensor:
    """`select` for what a loss takes as given: old, reference, and rollout log-probs, advantages, returns.

    Without this, a caller who passes ``old_log_probs`` that still hang on the graph of ``log_probs`` gets a gradient of
    exactly 0, and no error.

    Args:
        values: ``[N]``, may hold anything where ``mask`` is False.
        mask: bool ``[N]``.

    Returns:
        ``[N]``, detached.

    Raises:
        InputError: as `select`.
    """
    _require_tensor(values, "values")
    return select(values.detach(), mask)


def _require_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise InputError(f"{name}: expected a 1-D tensor [N], got {type(value).__name__}. Turn it into a tensor.")


def widen(values: Tensor) -> Tensor:
    """Float32, or float64 where it came as float64."""
    return values if values.dtype == torch.float64 else values.float()


def bounded_exp(log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(clamp(log_ratio, -20, 20))`` and a bool tensor of the clamped entries.

    The bound keeps the ratio within ``[2e-9, 4.9e8]``, so that products with advantages and sums over tokens stay
    finite in float32.

    Args:
        log_ratio: any shape, nats.

    Returns:
        Ratio, with a gradient of 0 on clamped entries, and which entries were clamped.
    """
    clamped = log_ratio.detach().abs() > MAX_LOG_RATIO
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(), clamped


def mean_over(values: Tensor, mask: Tensor) -> Ratio:
    """Mean of ``values`` over ``mask``, detached and mergeable; sums in float64.

    Args:
        values: ``[N]``, any dtype; bool counts.
        mask: bool ``[N]``.

    Returns:
        Sum over the mask and number of entries of the mask.
    """
    chosen = torch.where(mask, values.detach().double(), 0.0)
    return Ratio(chosen.sum(), mask.sum())


def as_mask(mask: Tensor, name: str = "mask") -> Tensor:
    """The mask as bool.

    Args:
        mask: ``[N]``; bool passes unread, numbers must be 0 or 1 (looking at them waits for the device).
        name: named in the error.

    Returns:
        bool ``[N]``.

    Raises:
        InputError: it is no tensor, or an entry is neither 0 nor 1.
    """
    _require_tensor(mask, name)
    if mask.dtype == torch.bool:
        return mask
    wrong = (mask != 0) & (mask != 1)
    if bool(wrong.any()):
        where = int(wrong.nonzero()[0, 0])
        raise InputError(
            f"{name}: expected only 0 and 1, got {mask[where].item()} at index {where}; {int(wrong.sum())} in all. "
            "A weight per token is not a mask; apply it through the advantages."
        )
    return mask.bool()


def require_same_length(**tensors: Tensor | None) -> None:
    """Check that all given tensors are 1-D, equally long, and on one device.

    Args:
        **tensors: by name; the first one sets the length; None is passed over.

    Raises:
        InputError: one is no tensor, or shapes or devices differ.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in given.items():
        _require_flat(tensor, name)
    first, reference = next(iter(given.items()))
    for name, tensor in given.items():
        if tensor.shape != reference.shape:
            raise InputError(
                f"{name}: expected shape {tuple(reference.shape)}, as {first}, got {tuple(tensor.shape)}. Flatten "
                "every tensor of the batch in the same token order."
            )
        if tensor.device != reference.device:
            raise InputError(
                f"{name}: expected device {reference.device} as for {first}, got {tensor.device}. Move it there."
            )


def _require_flat(tensor: Tensor, name: str) -> None:
    _require_tensor(tensor, name)
    if tensor.ndim != 1:
        raise InputError(
            f"{name}: expected a 1-D tensor [N], the response tokens of all sequences in a row, got shape "
            f"{tuple(tensor.shape)}. Flatten every tensor of the batch in the same token order."
        )


def require_finite(
    values: Tensor,
    mask: Tensor,
    name: str,
    sequence_ids: Tensor | None = None,
    *,
    across: SequenceSum | None = None,
) -> None:
    """Check that all active entries are finite, for functions that have no metrics to count the others in.

    Args:
        values: ``[N]``; looking at them waits for the device.
        mask: bool ``[N]``.
        name: named in the error.
        sequence_ids: int64 ``[N]``, to name sequence and position in the error.
        across: adds numbers over the ranks that work together, so that all of them raise and none waits for another.

    Raises:
        NonFiniteError: here or on another rank; names the entry.
    """
    bad = mask & ~values.detach().isfinite()
    count = bad.sum().double().reshape(1, 1)
    total = int(count if across is None else across(count))
    if not total:
        return
    if not bool(bad.any()):
        raise NonFiniteError(f"{name}: expected finite values on active tokens, got {total} others on other ranks.")
    index = int(bad.nonzero()[0, 0])
    place = f"index {index}"
    if sequence_ids is not None:
        sequence = int(sequence_ids[index])
        position = int((sequence_ids[:index] == sequence).sum())
        place += f" (response position {position} of sequence {sequence})"
    raise NonFiniteError(
        f"{name}: expected finite values on active tokens, got {values[index].item()} at {place}; {total} such in all. "
        "An advantage around a hole would be made up: find where it comes from, or take the sequence out of the mask."
    )


def finite_tokens(tokens: TokenTensors | ValueTensors, mask: Tensor, names: tuple[str, ...], *, strict: bool) -> Tensor:
    """Active tokens whose named values are all finite.

    Args:
        tokens: the micro-batch.
        mask: bool ``[N]``.
        names: fields that the loss reads.
        strict: raise on the first active token that is not finite (waits for the device) rather than leave it out.

    Returns:
        bool ``[N]``.

    Raises:
        NonFiniteError: in strict mode; names the sample, the position, and the field.
    """
    finite = mask
    for name in names:
        values: Tensor = getattr(tokens, name)
        good = values.detach().isfinite()
        if strict and bool((mask & ~good).any()):
            _raise_non_finite(tokens, name, mask & ~good)
        finite = finite & good
    return finite


def _raise_non_finite(tokens: TokenTensors | ValueTensors, name: str, bad: Tensor) -> None:
    index = int(bad.nonzero()[0, 0])
    sequence = int(tokens.sequence_ids[index])
    sample = repr(tokens.keys[sequence]) if tokens.keys is not None else f"number {sequence} of the micro-batch"
    if tokens.positions is not None:
        position = int(tokens.positions[index])
    else:
        position = int((tokens.sequence_ids[:index] == sequence).sum())
    raise NonFiniteError(
        f"{name} of sample {sample}: expected finite values on active tokens, got "
        f"{getattr(tokens, name)[index].item()} at response position {position}; {int(bad.sum())} such tokens in this "
        "micro-batch. Find where it comes from, or set strict=False to leave such tokens out and count them."
    )
