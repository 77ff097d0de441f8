"""The micro-batches of one TRL step, gathered until the step is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logparity.integrations.step_probe import HostBatch
from logparity.probe.arrays import as_float32, as_mask
from logparity.probe.pairs import TokenPairs


def micro_batch(inputs: Mapping[str, Any], scored: Any) -> TokenPairs | None:
    """The two sides of one micro-batch of `GRPOTrainer`.

    Args:
        inputs: what ``_compute_loss`` is given.
        scored: the trainer's log-probs ``[B, C]`` from that loss.

    Returns:
        The pairs; None where the batch has no ``sampling_per_token_logps``.
    """
    sampled = inputs.get("sampling_per_token_logps")
    if sampled is None:
        return None
    old = inputs.get("old_per_token_logps")
    mask = as_mask(inputs["completion_mask"], "completion_mask")
    if inputs.get("tool_mask") is not None:
        mask = mask & as_mask(inputs["tool_mask"], "tool_mask")
    # Copies: on a CPU the arrays share memory with tensors that the trainer goes on to use.
    return TokenPairs(
        rollout_log_probs=as_float32(sampled, "sampling_per_token_logps").copy(),
        old_log_probs=as_float32(scored if old is None else old, "old_per_token_logps").copy(),
        mask=mask,
        mask_name="completion_mask",
    )


class StepRows:
    """Rows of one step, from all its micro-batches."""

    def __init__(self) -> None:
        self.step: int | None = None
        self._parts: list[TokenPairs] = []

    def add(self, step: int, part: TokenPairs) -> None:
        """Add a micro-batch of a step."""
        self.step = step
        self._parts.append(part)

    def batch(self) -> HostBatch:
        """All rows, padded to the widest micro-batch."""
        width = max(part.mask.shape[1] for part in self._parts)

        def stacked(arrays: Sequence[Any]) -> Any:
            return np.concatenate([np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in arrays])

        pairs = TokenPairs(
            rollout_log_probs=stacked([part.rollout_log_probs for part in self._parts]),
            old_log_probs=stacked([part.old_log_probs for part in self._parts]),
            mask=stacked([part.mask for part in self._parts]),
            mask_name="completion_mask",
        )
        return HostBatch(pairs)


def merge_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of several steps as those of one logging interval.

    Args:
        steps: metrics by name, one mapping a step.

    Returns:
        Maxima of names that end in ``_max``, minima of ``_min``, sums of token counts, the last value of grid cells
        and of running counts, means of everything else.
    """
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        if name.endswith("_max"):
            merged[name] = max(values)
        elif name.endswith("_min"):
            merged[name] = min(values)
        elif name.endswith(("tokens", "/sequences")):
            merged[name] = sum(values)
        elif name.startswith(("training/rollout_probs_diff/", "probe/")):
            merged[name] = values[-1]
        else:
            merged[name] = sum(values) / len(values)
    return merged


__all__ = ["StepRows", "merge_steps", "micro_batch"]
