"""Which implementation runs, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from logparity.errors import InputError

IMPLEMENTATIONS: Final = ("reference", "chunked")


@dataclass(frozen=True, slots=True)
class Choice:
    """An implementation and the reason it was taken.

    Args:
        impl: one of `IMPLEMENTATIONS`.
        reason: for people.
    """

    impl: str
    reason: str


def choose(impl: str, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Choice:
    """Resolve ``impl="auto"``; anything else is taken at its word.

    Args:
        impl: ``auto`` or one of `IMPLEMENTATIONS`.
        device: where the logits are.
        dtype: their dtype.

    Returns:
        The choice, with its reason.

    Raises:
        InputError: there is no such implementation.
    """
    if impl == "auto":
        where = f"{torch.device(device).type}, {str(dtype).removeprefix('torch.')}"
        return Choice("chunked", f"{where}: works on every device and dtype, upcasts a few rows at a time")
    if impl not in IMPLEMENTATIONS:
        raise InputError(f"impl: expected one of auto, {', '.join(IMPLEMENTATIONS)}, got {impl!r}.")
    return Choice(impl, "asked for by name")
