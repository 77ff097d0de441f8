"""Guards around gradients that are written over something."""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.errors import InputError
from logparity.ops.checks import kind_of
from logparity.ops.chunked import GradientPlace


def gradient_place(logits: Tensor, into_logits: bool, buffer: Tensor | None) -> GradientPlace:
    """Check where the gradient is to go.

    Args:
        logits: ``[.., V_local]``.
        into_logits: whether backward is to overwrite them.
        buffer: a tensor that backward is to overwrite instead.

    Returns:
        The place.

    Raises:
        InputError: both places named; the logits are a leaf that requires grad, share memory between rows, or are
            needed by the operation that made them; the buffer is not like the logits.
    """
    if into_logits and buffer is not None:
        raise InputError("grad_into_logits and grad_buffer: expected one place for the gradient, got both. Name one.")
    if buffer is not None:
        _check_buffer(buffer, logits)
    if into_logits and logits.requires_grad and torch.is_grad_enabled():
        _check_overwritable(logits)
    return GradientPlace(into_logits=into_logits, buffer=None if buffer is None else buffer.detach())


def _check_buffer(buffer: Tensor, logits: Tensor) -> None:
    if not isinstance(buffer, Tensor):
        raise InputError(
            f"grad_buffer: expected a tensor like the logits, got {kind_of(buffer)}. Use torch.empty_like(logits)."
        )
    wanted, got = (f"{list(x.shape)} of {x.dtype} on {x.device}" for x in (logits, buffer))
    if wanted != got:
        raise InputError(f"grad_buffer: expected {wanted}, like the logits, got {got}. Use torch.empty_like(logits).")
    if buffer.requires_grad:
        raise InputError(
            "grad_buffer: expected a plain tensor, got one that requires grad. Use torch.empty_like(logits)."
        )
    _check_distinct_rows(buffer, "grad_buffer")
    if buffer.numel() and buffer.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr():
        raise InputError("grad_buffer: expected memory of its own, got the logits'. Say grad_into_logits=True instead.")


def _check_overwritable(logits: Tensor) -> None:
    # A view of any kind knows the tensor that it is a view of.
    base = logits if logits._base is None else logits._base
    if logits.is_leaf or (base.is_leaf and base.requires_grad):
        raise InputError(
            "grad_into_logits: expected logits computed by a model, got a leaf that requires grad (or a view of one), "
            "whose values backward would destroy. Drop grad_into_logits."
        )
    _check_distinct_rows(logits, "logits")
    for maker in filter(None, (logits.grad_fn, base.grad_fn)):
        kept = getattr(maker, "_saved_result", None)
        if isinstance(kept, Tensor) and kept.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr():
            raise InputError(
                f"grad_into_logits: expected logits that nobody else needs, but {maker.name()}, which made them, keeps "
                "them for its own backward. Drop grad_into_logits (softcaps: pass logit_softcap instead)."
            )


def _check_distinct_rows(tensor: Tensor, name: str) -> None:
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise InputError(f"{name}: expected rows in memory of their own, got an expanded tensor. Use .contiguous().")
