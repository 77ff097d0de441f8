"""What a memory plan is made of: tensors with their sizes, and when each of them is held. No torch in here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

ITEM_BYTES: Final = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor, or one group of equal ones, that an operation holds.

    Args:
        name: for people.
        shape: sizes of its axes.
        dtype: a key of `ITEM_BYTES`.
        forward: whether it is held at the worst moment of the forward pass.
        backward: whether it is held at the worst moment of the backward pass.
        count: how many of the same kind are held at once.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    forward: bool = False
    backward: bool = False
    count: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype] * self.count


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory that one way of computing token log-probs needs on one rank, beyond its inputs.

    Args:
        way: the way of computing, for people.
        tensors: what it holds.
        chunk_size: rows held at a time; None where nothing is cut into chunks.
        logits_bytes: the logits that have to exist before it can run; 0 from hidden states.
        budget_bytes: the limit that the chunk size was chosen for; None without one.
    """

    way: str
    tensors: tuple[PlannedTensor, ...]
    chunk_size: int | None
    logits_bytes: int
    budget_bytes: int | None = None

    @property
    def forward_bytes(self) -> int:
        """Worst moment of the forward pass."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.forward)

    @property
    def backward_bytes(self) -> int:
        """Worst moment of the backward pass; 0 where there is none."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.backward)

    @property
    def peak_bytes(self) -> int:
        """Worst moment of all, beyond the inputs; a returned gradient counts."""
        return max(self.forward_bytes, self.backward_bytes)

    @property
    def total_bytes(self) -> int:
        """Peak with the logits that this way has to start from."""
        return self.peak_bytes + self.logits_bytes

    def table(self) -> str:
        """The tensors and their sizes as text, the largest first, then the peak."""
        ordered = sorted(self.tensors, key=lambda tensor: -tensor.bytes)
        rows = [("tensor", "shape", "dtype", "MiB", "held in"), *(_row(tensor) for tensor in ordered)]
        rows.append(("peak", "", "", f"{self.peak_bytes / MIB:,.1f}", _worst(self)))
        chunk = "" if self.chunk_size is None else f", chunks of {self.chunk_size} rows"
        return "\n".join([f"{self.way}{chunk}", *_aligned(rows)])


def _row(tensor: PlannedTensor) -> tuple[str, ...]:
    name = tensor.name if tensor.count == 1 else f"{tensor.name} (x{tensor.count})"
    shape = "[" + ", ".join(str(size) for size in tensor.shape) + "]"
    held = " and ".join(phase for phase in ("forward", "backward") if getattr(tensor, phase))
    return name, shape, tensor.dtype, f"{tensor.bytes / MIB:,.1f}", held


def _worst(plan: MemoryPlan) -> str:
    return "forward" if plan.forward_bytes >= plan.backward_bytes else "backward"


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = list(rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    numeric = 3  # the column of sizes is the only one that is read down
    return [
        "  ".join(
            text.rjust(width) if column == numeric else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
