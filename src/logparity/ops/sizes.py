"""How many rows and columns are held at a time: the one home of these choices. Pure arithmetic, no torch.

The operations ask here, and so does the planner: a plan and a run cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from logparity.errors import InputError
from logparity.ops.memory_plan import ITEM_BYTES, MIB

Dtype = Literal["bf16", "fp16", "fp32", "fp64"]
Entropy = Literal["none", "value", "grad"]

BLOCK_COLUMNS: Final = 1024
"""Columns of a block of the vocabulary, by global index."""

SCRATCH_BYTES: Final = 8 * MIB
"""What all full-precision scratches of a call take together at most: small enough to stay in a CPU's cache."""

SLAB_BLOCKS: Final = 32768
"""Block statistics held before they are merged: large enough that merging costs little, small next to the scratch."""

TILE_COLUMNS: Final = 4096
"""Columns of a tile of logits made from hidden states: whole blocks, wide enough for a fast matrix product."""

TILE_ROWS: Final = 2048
"""Default rows of such a tile."""

TILE_SLICE_BYTES: Final = 4 * MIB
"""What the full-precision scratches take together at most that a tile passes through, slice by slice."""


def padded(columns: int) -> int:
    """Columns rounded up to whole blocks."""
    return -(-columns // BLOCK_COLUMNS) * BLOCK_COLUMNS


def scratch_rows(width: int, itemsize: int, scratches: int, chunk_size: int | None, limit: int = SCRATCH_BYTES) -> int:
    """Rows to hold in full precision at once: as many as ``limit`` bytes allow, at most ``chunk_size``, at least one.

    Args:
        width: columns of a scratch.
        itemsize: bytes of one of its values.
        scratches: how many scratches share the bytes.
        chunk_size: the caller's bound; None for none.
        limit: bytes of all scratches together.

    Returns:
        Number of rows.
    """
    fitting = limit // max(1, width * itemsize * scratches)
    return max(1, fitting if chunk_size is None else min(fitting, chunk_size))


def tile_rows(tokens: int, chunk_size: int | None) -> int:
    """Rows of hidden states that are multiplied at a time."""
    return max(1, min(tokens, TILE_ROWS if chunk_size is None else chunk_size))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be computed, on one rank.

    Args:
        tokens: T, rows that are scored.
        vocab: V, columns of the global vocabulary.
        hidden: H, or None where it does not matter.
        tp: ranks that share the vocabulary.
        dtype: of logits, or of hidden states and weight.
        entropy: ``none``, ``value``, or ``grad``.
        backward: whether gradients are computed.
    """

    tokens: int
    vocab: int
    hidden: int | None = None
    tp: int = 1
    dtype: Dtype = "bf16"
    entropy: Entropy = "none"
    backward: bool = True

    def __post_init__(self) -> None:
        for name, least in (("tokens", 0), ("vocab", 1), ("tp", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name}: expected a whole number >= {least}, got {value!r}.")
        if self.hidden is not None and self.hidden < 1:
            raise InputError(f"hidden: expected a whole number >= 1, got {self.hidden!r}.")
        if self.dtype not in ("bf16", "fp16", "fp32", "fp64"):
            raise InputError(f"dtype: expected one of bf16, fp16, fp32, fp64, got {self.dtype!r}.")
        if self.entropy not in ("none", "value", "grad"):
            raise InputError(f"entropy: expected one of none, value, grad, got {self.entropy!r}.")

    @property
    def columns(self) -> int:
        """Columns on the rank that holds most of them."""
        return -(-self.vocab // self.tp)

    @property
    def scratch_dtype(self) -> Dtype:
        """What a chunk is computed in."""
        return "fp64" if self.dtype == "fp64" else "fp32"

    @property
    def scratches(self) -> int:
        """Scratches of that dtype that are in use at once."""
        return 1 if self.entropy == "none" else 2

    @property
    def logits_bytes(self) -> int:
        """Bytes of this rank's logits."""
        return self.tokens * self.columns * ITEM_BYTES[self.dtype]

    @property
    def hidden_size(self) -> int:
        """H, for plans that cannot do without."""
        if self.hidden is None:
            raise InputError("hidden: expected the hidden size for a plan from hidden states, got None. Give hidden=.")
        return self.hidden


def logits_rows(problem: Problem, chunk_size: int | None) -> int:
    """Rows of logits that are upcast at a time."""
    itemsize = ITEM_BYTES[problem.scratch_dtype]
    rows = scratch_rows(padded(problem.columns), itemsize, problem.scratches, chunk_size)
    return min(rows, max(problem.tokens, 1))
