"""Logits that are hard to score, and the truth about them in float64 numpy, written without the library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
VOCABULARIES = (7, 129, 1003, 32768, 151936)


@dataclass(frozen=True)
class Truth:
    """Exact scores of rows, and exact gradients of ``sum(g * log_probs + h * entropy)``."""

    log_probs: Tensor
    entropy: Tensor
    gradient: Tensor


def truth(logits: Tensor, targets: Tensor, temperature: Tensor | float, g: Tensor, h: Tensor) -> Truth:
    """Float64 truth of the rounded logits, for logits without NaN and rows that are not wholly -inf."""
    x = logits.detach().double().numpy()
    tau = np.broadcast_to(np.asarray(temperature, dtype=np.float64), targets.shape)[:, None]
    with np.errstate(divide="ignore", over="ignore"):
        z = (x - x.max(1, keepdims=True)) / tau
        log_sum = np.log(np.exp(z).sum(1, keepdims=True))
        log_p = z - log_sum
    p = np.exp(log_p)
    surprise = np.where(p > 0, log_p, 0.0)
    entropy = -(p * surprise).sum(1, keepdims=True)
    at = np.arange(len(x)), targets.numpy()
    own = np.zeros_like(x)
    own[at] = 1.0
    by_log_prob = own - p
    by_log_prob[at] = -np.expm1(log_p[at])
    by_entropy = -p * (surprise + entropy)
    gradient = (g.double().numpy()[:, None] * by_log_prob + h.double().numpy()[:, None] * by_entropy) / tau
    return Truth(torch.from_numpy(log_p[at]), torch.from_numpy(entropy[:, 0]), torch.from_numpy(gradient))


def hard_rows(vocab: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows ``[T, vocab]`` that break careless code, and targets ``[T]``: likely, unlikely, the first, the last."""
    draw = torch.Generator().manual_seed(seed)
    plain = torch.randn(8, vocab, generator=draw, dtype=torch.float64) * 3
    targets = torch.randint(vocab, (8,), generator=draw)
    targets[0], targets[1] = 0, vocab - 1
    plain[1, targets[1]] = 25.0  # p -> 1
    plain[2] = 1.25  # all equal
    plain[3, torch.rand(vocab, generator=draw) < 0.5] = -torch.inf
    plain[3, targets[3]] = 2.0
    plain[4] += 1e4  # common offset
    plain[5] = torch.where(torch.rand(vocab, generator=draw) < 0.5, 6e4, -6e4).double()
    plain[5, targets[5]] = 6e4
    plain[6] = -11.9
    plain[6, targets[6]] = 0.0  # many small terms that weigh as much as the target
    targets[7] = plain[7].argmax()
    return plain.to(dtype), targets


def random_rows(count: int, vocab: int, dtype: torch.dtype, seed: int = 0, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    """Ordinary rows ``[count, vocab]`` and targets."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.empty(count, vocab, dtype=dtype).normal_(0.0, scale, generator=draw)
    return logits, torch.randint(vocab, (count,), generator=draw)
