"""The ways of computing that are compared: logparity's and, from the packages people use, the real ones.

A contender is a function of the inputs and the mode that returns ``(log_probs, entropy or None)``. Each is imported
only when it is asked for, so that a missing package costs its own row and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Inputs, Mode

Outputs = tuple[Tensor, Tensor | None]
Scorer = Callable[[Inputs, Mode], Outputs]

LOG_PROB_MODES = (Mode.FORWARD, Mode.BACKWARD)
ALL_MODES = tuple(Mode)
TRL_TILE = 32768
"""Columns of a tile, as TRL's own trainer asks for them."""


@dataclass(frozen=True)
class Contender:
    """One way of computing.

    Args:
        name: what the table calls it.
        origin: the package and version it comes from.
        load: imports what it needs and returns the scorer.
        hidden: whether it starts from hidden states.
        modes: what it can deliver.
        overwrites_logits: whether the gradient lands in the storage of the logits.
    """

    name: str
    origin: str
    load: Callable[[], Scorer] = field(repr=False)
    hidden: bool = False
    modes: tuple[Mode, ...] = ALL_MODES
    overwrites_logits: bool = False

    @property
    def compiled(self) -> bool:
        """Whether it goes through torch.compile."""
        return "compile" in self.name

    @property
    def ours(self) -> bool:
        """Whether it is logparity's."""
        return self.origin == "logparity"

    def fits(self, case: Case, mode: Mode) -> bool:
        """Whether it can do this case in this mode."""
        wanted = mode.backward or not self.overwrites_logits
        return wanted and self.hidden == bool(case.hidden) and mode in self.modes


def _naive_from_logits(logits: Tensor, targets: Tensor, entropy: bool) -> Outputs:
    log_softmax = F.log_softmax(logits.float(), dim=-1)
    log_probs = log_softmax.gather(-1, targets[:, None]).squeeze(-1)
    return log_probs, (-(log_softmax.exp() * log_softmax).sum(-1) if entropy else None)


def _load_naive() -> Scorer:
    return lambda x, mode: _naive_from_logits(x.logits, x.targets, mode.entropy != "none")


def _load_compiled() -> Scorer:
    compiled = torch.compile(_naive_from_logits)
    return lambda x, mode: compiled(x.logits, x.targets, mode.entropy != "none")


def _load_cross_entropy() -> Scorer:
    return lambda x, _mode: (-F.cross_entropy(x.logits.float(), x.targets, reduction="none"), None)


def _load_trl() -> Scorer:
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    def score(x: Inputs, mode: Mode) -> Outputs:
        log_probs = selective_log_softmax(x.logits, x.targets)
        return log_probs, (entropy_from_logits(x.logits) if mode.entropy != "none" else None)

    return score


def _chunk(logits: Tensor, targets: Tensor, entropy: bool, rows: int = 64) -> Outputs:
    parts = [
        _naive_from_logits(chunk, target, entropy)
        for chunk, target in zip(logits.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat([p[0] for p in parts]), (torch.cat([p[1] for p in parts]) if entropy else None)


def _load_chunked_autograd() -> Scorer:
    return lambda x, mode: _chunk(x.logits, x.targets, mode.entropy != "none")


class _AsOutputOfAModel(torch.autograd.Function):
    """The same memory as a tensor that no leaf owns, so that a gradient may be written over it."""

    @staticmethod
    def forward(_ctx: object, logits: Tensor) -> Tensor:
        return logits.detach()

    @staticmethod
    def backward(_ctx: object, grad: Tensor) -> Tensor:
        return grad


def _load_ours(in_place: bool) -> Scorer:
    from logparity import token_log_probs

    def score(x: Inputs, mode: Mode) -> Outputs:
        logits = _AsOutputOfAModel.apply(x.logits) if in_place else x.logits
        out = token_log_probs(logits, x.targets, entropy=mode.entropy, grad_into_logits=in_place)
        return out.log_probs, out.entropy

    return score


def _load_naive_hidden(upcast: bool) -> Scorer:
    def score(x: Inputs, mode: Mode) -> Outputs:
        logits = x.hidden @ x.weight.T
        if upcast:
            return _naive_from_logits(logits, x.targets, mode.entropy != "none")
        return F.log_softmax(logits, dim=-1).gather(-1, x.targets[:, None]).squeeze(-1).float(), None

    return score


def _load_liger_hidden() -> Scorer:
    from liger_kernel.chunked_loss.fused_linear_ppo import _ChunkedSelectiveLogProbFunction as Liger

    return lambda x, _mode: (Liger.apply(x.hidden, x.weight, x.targets, None, 1.0, 4096), None)


def _load_trl_hidden() -> Scorer:
    from trl.kernels import ChunkedLogProbFunction

    def score(x: Inputs, mode: Mode) -> Outputs:
        outputs = ("entropy",) if mode.entropy != "none" else ()
        done = ChunkedLogProbFunction.apply(x.hidden, x.weight, None, x.targets, 1.0, TRL_TILE, None, 1.0, outputs)
        return done[0], done[1]

    return score


def _load_cut_cross_entropy(implementation: str) -> Scorer:
    from cut_cross_entropy import linear_cross_entropy

    loss = partial(linear_cross_entropy, impl=implementation, reduction="none")
    return lambda x, _mode: (-loss(x.hidden, x.weight, x.targets), None)


def _load_ours_hidden(**options: object) -> Scorer:
    from logparity import linear_token_log_probs

    def score(x: Inputs, mode: Mode) -> Outputs:
        out = linear_token_log_probs(x.hidden, x.weight, x.targets, entropy=mode.entropy, **options)
        return out.log_probs, out.entropy

    return score


CONTENDERS = (
    Contender("token_log_probs", "logparity", partial(_load_ours, False)),
    Contender("token_log_probs, grad_into_logits", "logparity", partial(_load_ours, True), overwrites_logits=True),
    Contender("naive: fp32 log_softmax", "torch", _load_naive),
    Contender("F.cross_entropy(logits.float())", "torch", _load_cross_entropy, modes=LOG_PROB_MODES),
    Contender("torch.compile(naive)", "torch", _load_compiled),
    Contender("upcast in chunks of 64, plain autograd", "torch", _load_chunked_autograd),
    Contender("selective_log_softmax, entropy_from_logits", "TRL 1.16", _load_trl),
    Contender("linear_token_log_probs", "logparity", _load_ours_hidden, hidden=True),
    Contender(
        "linear_token_log_probs, fp32 logits",
        "logparity",
        partial(_load_ours_hidden, logits_dtype=torch.float32),
        hidden=True,
    ),
    Contender("naive: fp32 log_softmax", "torch", partial(_load_naive_hidden, True), hidden=True),
    Contender("plain bf16 log_softmax", "torch", partial(_load_naive_hidden, False), hidden=True, modes=LOG_PROB_MODES),
    Contender("chunked selective log-prob", "Liger 0.8.5", _load_liger_hidden, hidden=True, modes=LOG_PROB_MODES),
    Contender("ChunkedLogProbFunction", "TRL 1.16", _load_trl_hidden, hidden=True),
    Contender(
        "linear_cross_entropy, torch_compile",
        "cut-cross-entropy 25.1.1",
        partial(_load_cut_cross_entropy, "torch_compile"),
        hidden=True,
        modes=LOG_PROB_MODES,
    ),
    Contender(
        "linear_cross_entropy, cce",
        "cut-cross-entropy 25.1.1",
        partial(_load_cut_cross_entropy, "cce"),
        hidden=True,
        modes=LOG_PROB_MODES,
    ),
)


def perform(scorer: Scorer, inputs: Inputs, mode: Mode) -> list[Tensor]:
    """Do what the mode asks for: the outputs, and under a backward mode the gradients of every leaf."""
    if not mode.backward:
        with torch.no_grad():
            return [out for out in scorer(inputs, mode) if out is not None]
    log_probs, entropy = scorer(inputs, mode)
    roots, grads = [log_probs], [inputs.grad_log_probs.to(log_probs.dtype)]
    if mode is Mode.BACKWARD_ENTROPY:
        assert entropy is not None
        roots.append(entropy)
        grads.append(inputs.grad_entropy.to(entropy.dtype))
    gradients = torch.autograd.grad(roots, inputs.leaves, grads)
    return [log_probs.detach(), *gradients]
