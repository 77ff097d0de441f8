"""From one row of logits to one sampled token and its log-prob: temperature, truncation, inverse-CDF draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from logparity.records import LogProbMode, SamplingSettings

if TYPE_CHECKING:
    from torch import Tensor


def processed_log_probs(logits: Tensor, sampling: SamplingSettings) -> Tensor:
    """Log-probs of the distribution that is sampled from.

    ``log softmax(cut((z - max z) / temperature))`` with top-k, then top-p, then min-p cutting ids to ``-inf``; the
    rest is renormalised. The temperature divides after the row maximum is taken off, in float32.

    Args:
        logits: float32 ``[B, V]``.
        sampling: how tokens are drawn.

    Returns:
        float32 ``[B, V]``, nats; ``-inf`` where an id is cut.
    """
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature
    log_probs = torch.log_softmax(scaled, dim=-1)
    if 0 < sampling.top_k < logits.shape[-1]:
        log_probs = _renormalised(_keep_top_k(log_probs, sampling.top_k))
    if sampling.top_p < 1:
        log_probs = _renormalised(_keep_top_p(log_probs, sampling.top_p))
    if sampling.min_p > 0:
        log_probs = _renormalised(_keep_min_p(log_probs, sampling.min_p))
    return log_probs


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Sample one id per row: the first whose cumulative probability exceeds the row's uniform number.

    One uniform number decides one token, so that a response depends on its own numbers alone, not on which other
    rows are in the batch. Sums run in float64; an id of probability 0 is never drawn.

    Args:
        log_probs: float32 ``[B, V]``, nats.
        uniforms: float64 ``[B]`` in [0, 1).

    Returns:
        int64 ``[B]`` ids.
    """
    cumulative = log_probs.double().exp_().cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    ids = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    # u * total may round up to the total itself; the first id that reaches it is the last one with a chance.
    last = torch.searchsorted(cumulative, total)
    # A row of NaN finds no place at all; any id will do, its log-prob is NaN.
    return torch.minimum(ids, last)[:, 0].clamp_(max=log_probs.shape[-1] - 1)


def sample(logits: Tensor, uniforms: Tensor, sampling: SamplingSettings, mode: LogProbMode) -> tuple[Tensor, Tensor]:
    """Sample one id per row and report its log-prob in the declared mode.

    Args:
        logits: ``[B, V]`` in model precision.
        uniforms: float64 ``[B]`` in [0, 1).
        sampling: how tokens are drawn.
        mode: which distribution the reported log-prob belongs to.

    Returns:
        int64 ``[B]`` ids and float32 ``[B]`` log-probs, nats; a row with NaN or ``+inf`` logits reports NaN.
    """
    logits = logits.float()
    processed = processed_log_probs(logits, sampling)
    ids = draw(processed, uniforms)
    reported = processed if mode is LogProbMode.PROCESSED else torch.log_softmax(logits, dim=-1)
    return ids, reported.gather(1, ids[:, None])[:, 0]


def _renormalised(log_probs: Tensor) -> Tensor:
    return torch.log_softmax(log_probs, dim=-1)


def _keep_top_k(log_probs: Tensor, top_k: int) -> Tensor:
    """Keep the ``top_k`` most probable ids, and those that tie with the last of them."""
    smallest = log_probs.topk(top_k, dim=-1).values[:, -1:]
    return log_probs.masked_fill(log_probs < smallest, -torch.inf)


def _keep_top_p(log_probs: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most probable ids whose mass reaches ``top_p``; always at least one."""
    ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
    probs = ordered.double().exp_()
    mass_before = probs.cumsum(dim=-1) - probs
    ordered = ordered.masked_fill(mass_before >= top_p, -torch.inf)
    return torch.empty_like(log_probs).scatter_(1, order, ordered)


def _keep_min_p(log_probs: Tensor, min_p: float) -> Tensor:
    """Keep ids at least ``min_p`` times as probable as the most probable one."""
    floor = log_probs.amax(dim=-1, keepdim=True) + torch.log(torch.tensor(min_p, dtype=log_probs.dtype))
    return log_probs.masked_fill(log_probs < floor, -torch.inf)


__all__ = ["draw", "processed_log_probs", "sample"]
