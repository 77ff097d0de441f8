"""How much memory token log-probs need on one rank. Pure arithmetic, no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from logparity.errors import InputError
from logparity.ops.memory_plan import MIB, MemoryPlan
from logparity.ops.planned_tensors import linear_tensors, logits_tensors
from logparity.ops.sizes import Dtype, Entropy, Problem, logits_rows, tile_rows


def plan_memory(
    *,
    tokens: int,
    vocab: int,
    hidden: int | None = None,
    tp: int = 1,
    dtype: Dtype = "bf16",
    entropy: Entropy = "none",
    backward: bool = True,
    chunk_size: int | Literal["auto"] = "auto",
    budget_bytes: int | None = None,
    from_hidden: bool = False,
    grad_into_logits: bool = False,
) -> MemoryPlan:
    """Plan the memory of `token_log_probs`, or of `linear_token_log_probs` with ``from_hidden``, on one rank.

    Args:
        tokens: T, rows that are scored.
        vocab: V, columns of the global vocabulary.
        hidden: H; needed with ``from_hidden``.
        tp: ranks that share the vocabulary evenly.
        dtype: of the logits, or of hidden states and weight.
        entropy: ``none``, ``value``, or ``grad``.
        backward: whether gradients are computed (of logits, or of hidden states and weight).
        chunk_size: rows held at a time; ``auto`` for the default, or what the budget allows if that is less.
        budget_bytes: limit for the peak beyond the inputs.
        from_hidden: plan `linear_token_log_probs`, which never holds the logits.
        grad_into_logits: the gradient is written over the logits.

    Returns:
        The plan: each tensor, the peak, and the chunk size.

    Raises:
        InputError: a size is not positive, or no chunk size fits the budget.
    """
    problem = Problem(tokens, vocab, hidden, tp, dtype, entropy, backward)
    if chunk_size != "auto" and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise InputError(f"chunk_size: expected 'auto' or a whole number >= 1, got {chunk_size!r}.")
    rows = None if chunk_size == "auto" else chunk_size

    def plan(limit: int | None) -> MemoryPlan:
        return plan_problem(problem, limit, from_hidden=from_hidden, grad_into_logits=grad_into_logits)

    default = plan(rows)
    if budget_bytes is None:
        return default
    if rows is None and default.peak_bytes > budget_bytes:
        assert default.chunk_size is not None
        default = plan(_largest_that_fits(lambda limit: plan(limit).peak_bytes, default.chunk_size, budget_bytes))
    return replace(default, budget_bytes=budget_bytes)


def plan_problem(
    problem: Problem, chunk_size: int | None, *, from_hidden: bool = False, grad_into_logits: bool = False
) -> MemoryPlan:
    """`plan_memory` for a problem that is stated already; ``chunk_size=None`` for the default."""
    if from_hidden:
        rows = tile_rows(problem.tokens, chunk_size)
        return MemoryPlan("linear_token_log_probs", linear_tensors(problem, rows), rows, logits_bytes=0)
    rows = logits_rows(problem, chunk_size)
    way = "token_log_probs, grad_into_logits" if grad_into_logits else "token_log_probs"
    return MemoryPlan(way, logits_tensors(problem, rows, grad_into_logits), rows, problem.logits_bytes)


def _largest_that_fits(peak: Callable[[int], int], default: int, budget_bytes: int) -> int:
    """The largest chunk size whose peak is within the budget; the peak grows with it."""
    if peak(1) > budget_bytes:
        raise InputError(
            f"budget_bytes: expected room for at least one row at a time, {peak(1) / MIB:,.1f} MiB, got "
            f"{budget_bytes / MIB:,.1f} MiB. Score fewer tokens a call, share the vocabulary over more ranks, or write "
            "the gradient into the logits."
        )
    low, high = 1, default
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= budget_bytes else (low, middle)
    return low


__all__ = ["MemoryPlan", "plan_memory"]
