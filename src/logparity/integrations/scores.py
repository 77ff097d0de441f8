"""Log-probs and entropies in the shapes that hosts ask for, from `logparity.ops.token_log_probs`."""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.notation import IGNORE_INDEX
from logparity.ops import token_log_probs


def scores(
    logits: Tensor,
    ids: Tensor,
    *,
    entropy: str = "none",
    temperature: float = 1.0,
    row_mask: Tensor | None = None,
    grad_into_logits: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Score one id per row of logits.

    Args:
        logits: ``[.., V]``, any float dtype.
        ids: int64 ``[..]``.
        entropy: ``none``, ``value``, or ``grad``.
        temperature: divides the logits.
        row_mask: rows with 0 score 0 and get no gradient; None scores all.
        grad_into_logits: let backward overwrite the logits with their gradient.

    Returns:
        Log-probs and entropy (None where not asked for) ``[..]`` in nats; float32, or float64 for float64 logits.
    """
    targets = ids.long()
    if row_mask is not None:
        targets = targets.masked_fill(row_mask == 0, IGNORE_INDEX)
    result = token_log_probs(
        logits, targets, temperature=temperature, entropy=entropy, grad_into_logits=grad_into_logits
    )
    return result.log_probs, result.entropy


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy of every row ``[.., V]`` -> ``[..]`` in nats, with a gradient where the logits have one."""
    ids = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    mode = "grad" if torch.is_grad_enabled() and logits.requires_grad else "value"
    entropy = scores(logits, ids, entropy=mode)[1]
    assert entropy is not None  # asked for
    return entropy


__all__ = ["entropy_of", "scores"]
