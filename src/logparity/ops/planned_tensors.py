"""The tensors that logparity's own operations hold, as functions of the problem and the rows held at a time."""

from __future__ import annotations

from logparity.ops.memory_plan import MIB, PlannedTensor
from logparity.ops.sizes import (
    BLOCK_COLUMNS,
    SLAB_BLOCKS,
    TILE_COLUMNS,
    TILE_SLICE_BYTES,
    Problem,
    padded,
    scratch_rows,
)

PRODUCT_WORKSPACE = 2 * MIB
"""What the library behind a matrix product takes for itself (oneDNN, a tile of 1,024 by 4,096: 1.5 to 2 MiB)."""


def logits_tensors(problem: Problem, rows: int, grad_into_logits: bool) -> tuple[PlannedTensor, ...]:
    """What `token_log_probs` holds.

    Args:
        problem: what is computed.
        rows: rows of logits that are upcast at a time.
        grad_into_logits: whether the gradient takes no memory of its own.

    Returns:
        The tensors.
    """
    width = padded(problem.columns)
    tensors = [
        PlannedTensor("scratch", (rows, width), problem.scratch_dtype, True, problem.backward, count=problem.scratches),
        *_block_statistics(problem, _slab_rows(problem, width), width),
        _merging(problem, width),
        _results(problem),
    ]
    if problem.backward:
        tensors.append(_row_statistics(problem))
        if not grad_into_logits:
            shape = (problem.tokens, problem.columns)
            tensors.append(PlannedTensor("gradient of the logits", shape, problem.dtype, backward=True))
    return tuple(tensors)


def linear_tensors(problem: Problem, rows: int) -> tuple[PlannedTensor, ...]:
    """What `linear_token_log_probs` holds, the gradients of hidden states and weight with it.

    Args:
        problem: what is computed.
        rows: rows of a tile.

    Returns:
        The tensors.
    """
    width = min(TILE_COLUMNS, padded(problem.columns))
    item = 8 if problem.scratch_dtype == "fp64" else 4
    slice_rows = scratch_rows(width, item, problem.scratches, rows, TILE_SLICE_BYTES)
    tensors = [
        PlannedTensor("tile of logits", (rows, width), problem.dtype, True, problem.backward),
        PlannedTensor(
            "scratch", (slice_rows, width), problem.scratch_dtype, True, problem.backward, count=problem.scratches
        ),
        *_block_statistics(problem, rows, padded(problem.columns)),
        _merging(problem, padded(problem.columns)),
        _results(problem),
        PlannedTensor("workspace of the matrix product", (PRODUCT_WORKSPACE // 2,), "bf16", True, problem.backward),
    ]
    if problem.backward:
        tensors += [_row_statistics(problem), *_linear_gradients(problem, rows, width)]
    return tuple(tensors)


def _linear_gradients(problem: Problem, rows: int, width: int) -> list[PlannedTensor]:
    tokens, hidden, full = problem.tokens, problem.hidden_size, problem.scratch_dtype
    tensors = [
        PlannedTensor("gradient of the hidden states, summed", (tokens, hidden), full, backward=True),
        PlannedTensor("gradient of the weight", (problem.columns, hidden), problem.dtype, backward=True),
    ]
    if problem.dtype == full:
        return tensors
    tensors.append(PlannedTensor("product for the hidden states", (rows, hidden), problem.dtype, backward=True))
    if rows < tokens:
        tensors.append(PlannedTensor("gradient of a tile's weight, summed", (width, hidden), full, backward=True))
        tensors.append(PlannedTensor("product for the weight", (width, hidden), problem.dtype, backward=True))
    return tensors


def _block_statistics(problem: Problem, rows: int, width: int) -> list[PlannedTensor]:
    kinds = 1 if problem.entropy == "none" else 2
    shape = (rows, width // BLOCK_COLUMNS)
    return [
        PlannedTensor("block statistics", shape, problem.scratch_dtype, forward=True, count=kinds),
        PlannedTensor("block sums", shape, "fp64", forward=True),
    ]


def _slab_rows(problem: Problem, width: int) -> int:
    return max(1, min(problem.tokens, SLAB_BLOCKS // (width // BLOCK_COLUMNS)))


def _merging(problem: Problem, width: int) -> PlannedTensor:
    """The float64 copies of a slab of block statistics while they are merged, and the merge's own temporaries."""
    kinds = 2 if problem.entropy == "none" else 3
    shape = (_slab_rows(problem, width), width // BLOCK_COLUMNS)
    return PlannedTensor("merging of block statistics", shape, "fp64", forward=True, count=kinds + 4)


def _results(problem: Problem) -> PlannedTensor:
    count = 1 if problem.entropy == "none" else 2
    return PlannedTensor(
        "log-probs and entropy", (problem.tokens,), problem.scratch_dtype, True, problem.backward, count=count
    )


def _row_statistics(problem: Problem) -> PlannedTensor:
    count = 3 if problem.entropy == "none" else 4
    return PlannedTensor("row statistics", (problem.tokens,), "fp64", True, True, count=count)
