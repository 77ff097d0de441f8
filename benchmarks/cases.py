"""What is measured: shapes, data, and the ways of calling."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor


class Mode(str, Enum):
    """What one call has to deliver."""

    FORWARD = "forward"
    FORWARD_ENTROPY = "forward + entropy"
    BACKWARD = "forward + backward"
    BACKWARD_ENTROPY = "forward + backward, entropy with gradient"

    @property
    def entropy(self) -> str:
        """The entropy option of logparity's operations that this mode needs."""
        return {Mode.FORWARD_ENTROPY: "value", Mode.BACKWARD_ENTROPY: "grad"}.get(self, "none")

    @property
    def backward(self) -> bool:
        """Whether gradients are computed."""
        return self in (Mode.BACKWARD, Mode.BACKWARD_ENTROPY)


@dataclass(frozen=True)
class Case:
    """One shape. ``hidden == 0``: the input is logits; else hidden states and the weight of the output layer."""

    name: str
    tokens: int
    vocab: int
    hidden: int = 0
    modes: tuple[Mode, ...] = tuple(Mode)


LOGITS = Case("logits", tokens=2048, vocab=151936)
PUBLISHED = Case("published", tokens=512, vocab=131072, modes=(Mode.FORWARD, Mode.BACKWARD))
HIDDEN = Case("hidden", tokens=2048, vocab=151936, hidden=1024, modes=(Mode.FORWARD, Mode.BACKWARD))
CASES = {case.name: case for case in (LOGITS, PUBLISHED, HIDDEN)}


@dataclass
class Inputs:
    """Tensors of a case. The tensors that take a gradient are leaves with ``requires_grad``."""

    targets: Tensor
    grad_log_probs: Tensor
    grad_entropy: Tensor
    logits: Tensor | None = None
    hidden: Tensor | None = None
    weight: Tensor | None = None

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that a backward pass has to give gradients for."""
        return [t for t in (self.logits, self.hidden, self.weight) if t is not None]


def make_inputs(case: Case, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Inputs:
    """Draw the tensors of a case, in blocks, so that drawing them needs little more memory than keeping them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, std: float) -> Tensor:
        out = torch.empty(rows, columns, dtype=dtype)
        drawn = torch.randn(min(rows, 64), columns, generator=generator).mul_(std)
        for i, block in enumerate(out.split(64)):  # every row another one, at a fraction of the time
            block.copy_(drawn[: len(block)].roll(i * 977, dims=1))
        return out.requires_grad_()

    inputs = Inputs(
        targets=torch.randint(case.vocab, (case.tokens,), generator=generator),
        grad_log_probs=torch.randn(case.tokens, generator=generator),
        grad_entropy=torch.randn(case.tokens, generator=generator),
    )
    if case.hidden:
        inputs.hidden = normal(case.tokens, case.hidden, 1.0)
        inputs.weight = normal(case.vocab, case.hidden, 2.0 / case.hidden**0.5)
    else:
        inputs.logits = normal(case.tokens, case.vocab, 2.0)
    return inputs


def true_log_probs(inputs: Inputs, rows: int) -> Tensor:
    """Log-probs of the first ``rows`` rows in float64 from the inputs as they are: the truth of the error column."""
    out = []
    for i in range(rows):
        if inputs.logits is not None:
            row = inputs.logits[i].detach().double()
        else:
            assert inputs.hidden is not None
            assert inputs.weight is not None
            vector = inputs.hidden[i].detach().double()
            row = torch.cat([block.detach().double() @ vector for block in inputs.weight.split(8192)])
        out.append(row[inputs.targets[i]] - torch.logsumexp(row, 0))
    return torch.stack(out)
