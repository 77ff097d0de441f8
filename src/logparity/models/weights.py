"""Weights by Hugging Face name: handing them out, taking them in, tied embeddings included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from logparity.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and saved buffer of a model once, under its Hugging Face name; a tied one under its first."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy weights into a model, all of them or none.

    Args:
        model: takes them, in its own dtype and on its own device.
        weights: pairs of name and tensor; a tied weight may come under one of its names or under all.

    Raises:
        InputError: a name is unknown, missing, or given twice, or a shape differs. Nothing is copied then.
    """
    own = model.state_dict(keep_vars=True)
    given = _collected(weights)
    unknown = [name for name in given if name not in own]
    covered = {id(own[name]) for name in given if name in own}
    missing = [name for name, tensor in named_weights(model) if id(tensor) not in covered]
    if unknown or missing:
        raise InputError(
            f"weights: expected the model's {len(own)} names; {len(unknown)} unknown {_some(unknown)}, "
            f"{len(missing)} missing {_some(missing)}. Hand over every weight under its Hugging Face name."
        )
    for name, tensor in given.items():
        if tensor.shape != own[name].shape:
            raise InputError(f"weights: {name} expected shape {tuple(own[name].shape)}, got {tuple(tensor.shape)}.")
    for name, tensor in given.items():
        own[name].copy_(tensor)


def _collected(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    given: dict[str, Tensor] = {}
    for name, tensor in weights:
        if name in given:
            raise InputError(f"weights: {name} is given twice.")
        given[name] = tensor
    return given


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"({shown}{', …' if len(names) > 3 else ''})" if names else ""


__all__ = ["copy_weights", "named_weights"]
