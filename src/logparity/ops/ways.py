"""The ways of computing token log-probs that people choose between, planned side by side. No torch in here."""

from __future__ import annotations

from logparity.ops.memory_plan import MemoryPlan, PlannedTensor
from logparity.ops.planner import plan_problem
from logparity.ops.sizes import Problem


def plan_ways(problem: Problem, chunk_size: int | None = None) -> tuple[MemoryPlan, ...]:
    """Plan every way that can deliver what is asked for, the plainest first.

    Args:
        problem: what is computed; ways from hidden states are left out where it has no hidden size.
        chunk_size: rows held at a time by logparity's ways; None for their default.

    Returns:
        Plans whose ``total_bytes`` can be compared: each counts the logits it has to start from.
    """
    plans = [_naive(problem)]
    if problem.entropy == "none":
        plans.append(_cross_entropy(problem))
    plans.append(plan_problem(problem, chunk_size))
    if problem.backward:
        plans.append(plan_problem(problem, chunk_size, grad_into_logits=True))
    if problem.hidden is not None:
        plans.append(plan_problem(problem, chunk_size, from_hidden=True))
    return tuple(plans)


def _naive(problem: Problem) -> MemoryPlan:
    """``logits.float().log_softmax(-1).gather(...)`` and ``-(p * log p).sum(-1)`` under autograd."""
    # At the worst moment of backward: log-softmax, gather's zero-filled gradient, log-softmax's own gradient; with an
    # entropy gradient also the probabilities and the gradient of the product. (Measured: 12 and 20 bytes per logit.)
    forward = 2 if problem.entropy == "none" else 3
    backward = 5 if problem.entropy == "grad" else 3
    return _full_copies("naive fp32 log_softmax", problem, forward, backward)


def _cross_entropy(problem: Problem) -> MemoryPlan:
    return _full_copies("F.cross_entropy in fp32", problem, forward=2, backward=3)


def _full_copies(way: str, problem: Problem, forward: int, backward: int) -> MemoryPlan:
    shape, full = (problem.tokens, problem.columns), problem.scratch_dtype
    tensors = [PlannedTensor(f"{full} copies of the logits, forward", shape, full, forward=True, count=forward)]
    if problem.backward:
        name = f"{full} copies of the logits, backward"
        tensors.append(PlannedTensor(name, shape, full, backward=True, count=backward))
    return MemoryPlan(way, tuple(tensors), None, problem.logits_bytes)
