"""Output layers for tests: hidden states, weight, bias, targets, and the truth in float64 by autograd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class HeadCase:
    """Tensors of one head; ``hidden``, ``weight`` and ``bias`` take gradients."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    upstream: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        return [self.hidden, self.weight, self.bias]


def random_head(tokens: int, hidden: int, vocab: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> HeadCase:
    """A head with logits of standard deviation 2."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype).requires_grad_()

    return HeadCase(
        hidden=normal(tokens, hidden),
        weight=normal(vocab, hidden, scale=2.0 / hidden**0.5),
        bias=normal(vocab, scale=0.5),
        targets=torch.randint(vocab, (tokens,), generator=generator),
        upstream=torch.randn(3, tokens, generator=generator),
    )


def exact_head(tokens: int, vocab: int, dtype: torch.dtype, hidden: int = 16, seed: int = 0) -> HeadCase:
    """A head of small integers and quarters: every product and sum is exact in any dtype, whatever the order."""
    case = random_head(tokens, hidden, vocab, seed=seed)
    case.hidden = case.hidden.detach().round().clamp(-2, 2).to(dtype).requires_grad_()
    case.weight = (case.weight.detach() * 2).round().clamp(-1, 1).mul(0.25).to(dtype).requires_grad_()
    case.bias = case.bias.detach().round().clamp(-1, 1).to(dtype).requires_grad_()
    return case


def exact_log_probs(case: HeadCase, temperature: float = 1.0) -> Tensor:
    """Log-probs in float64 from the tensors as they are; differentiable."""
    logits = case.hidden.double() @ case.weight.double().T + case.bias.double()
    return torch.log_softmax(logits / temperature, -1).gather(1, case.targets[:, None]).squeeze(1)


def exact_gradients(case: HeadCase) -> list[Tensor]:
    """Gradients of the weighted sum of log-probs in float64, by hidden states, weight, and bias."""
    wide = HeadCase(*(leaf.detach().double().requires_grad_() for leaf in case.leaves), case.targets, case.upstream)
    return list(torch.autograd.grad(exact_log_probs(wide), wide.leaves, case.upstream[0].double()))
