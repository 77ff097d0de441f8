"""Tensors of any library, dtype, and device as numpy arrays, without importing that library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.records import BoolArray, FloatArray


def as_float32(values: Any, name: str) -> FloatArray:
    """Take a numpy array or a torch tensor as float32; the input is left as it is.

    Args:
        values: array or tensor of any float or integer dtype, on any device, with or without gradient.
        name: what it is, for the error message.

    Returns:
        float32 array of the same shape.

    Raises:
        InputError: the values are no numbers.
    """
    if hasattr(values, "detach"):
        # numpy has no bfloat16: the tensor has to widen itself before it can be handed over.
        values = values.detach().float().cpu().numpy()
    return _numeric(values, name).astype(np.float32, copy=False)


def as_mask(values: Any, name: str) -> BoolArray:
    """Take a mask of bools or numbers; every value but 0 is True.

    Args:
        values: array or tensor.
        name: what it is, for the error message.

    Returns:
        bool array of the same shape.

    Raises:
        InputError: the values are no numbers.
    """
    if hasattr(values, "detach"):
        values = values.detach().bool().cpu().numpy()
    mask: BoolArray = _numeric(values, name) != 0
    return mask


def _numeric(values: Any, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{name}: expected an array of numbers, got dtype {array.dtype}. Pad ragged lists to [B, R] first."
        )
    return array


__all__ = ["as_float32", "as_mask"]
