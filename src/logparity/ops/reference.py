"""The specification: plain torch, float64 inside, rounded once. Slow and large on purpose.

y         = cap * tanh(logits / cap)                   softcap where asked for
log_probs = log_softmax(scale * y / temperature)[target]
entropy   = -sum_j p_j log p_j
"""

from __future__ import annotations

import torch
from torch import Tensor

from logparity.ops.options import Entropy, Scoring
from logparity.ops.results import TokenLogProbs
from logparity.ops.statistics import working_dtype
from logparity.parallel.collectives import Exchange
from logparity.parallel.gather import gather_columns


def reference_scores(logits: Tensor, scoring: Scoring, exchange: Exchange) -> TokenLogProbs:
    """Scores of flat targets ``[N]``, differentiated by autograd.

    Args:
        logits: ``[.., V_local]``; other ranks' columns are gathered in one collective.
        scoring: what is asked.
        exchange: the collective, with room for float64 columns.

    Returns:
        Scores ``[N]`` in float32 (float64 for float64 logits).

    Memory:
        Several float64 copies of the full-vocabulary logits.
    """
    flat = logits.reshape(-1, logits.shape[-1])[scoring.row_index()]
    # Widened before the gather: its payload's size must not depend on a dtype that one rank may have wrong.
    full = gather_columns(flat.double(), exchange)[:, : scoring.columns]
    shaped = _shaped(full, scoring)
    log_p = _tempered_log_softmax(shaped, scoring)
    dtype = working_dtype(logits.dtype)
    picked = _pick(log_p, scoring.targets)
    entropy = None
    if scoring.entropy is not Entropy.NONE:
        entropy = -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(-1)
        entropy = entropy.detach() if scoring.entropy is Entropy.VALUE else entropy
    supported = None
    if scoring.support is not None:
        inside = torch.zeros_like(shaped, dtype=torch.bool)
        inside[scoring.support.row, scoring.support.id] = True
        supported = _pick(_tempered_log_softmax(shaped.masked_fill(~inside, -torch.inf), scoring), scoring.targets)
    return TokenLogProbs(
        picked.to(dtype),
        None if entropy is None else entropy.to(dtype),
        None if supported is None else supported.to(dtype),
    )


def _shaped(values: Tensor, scoring: Scoring) -> Tensor:
    cap = scoring.distribution.softcap
    if cap is not None:
        values = torch.where(values.isinf(), values, cap * torch.tanh(values / cap))
    return values


def _tempered_log_softmax(values: Tensor, scoring: Scoring) -> Tensor:
    rate = scoring.distribution.rate()
    return torch.log_softmax((values - values.detach().amax(-1, keepdim=True)) * rate, dim=-1)


def _pick(log_p: Tensor, targets: Tensor) -> Tensor:
    return log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
