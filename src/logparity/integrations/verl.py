"""verl: the comparison as functions over its batch, and its log-prob functions replaced by ours.

Inside a verl run nothing of this has to be called: `logparity.integrations.verl_plugin` is found by verl itself, and
``+trainer.enable_token_level_prob_diff=True`` switches it on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from logparity.errors import InputError
from logparity.integrations.rebind import Replaced, rebind
from logparity.probe.verl_api import calculate_debug_metrics, calculate_token_level_prob_diff

if TYPE_CHECKING:
    from torch import Tensor

_HOME = "verl.utils.torch_functional"
_NAMES = ("logprobs_from_logits", "entropy_from_logits", "entropy_from_logits_with_chunking")


def logprobs_from_logits(logits: Tensor, labels: Tensor, inplace_backward: bool = False) -> Tensor:
    """Score labels as verl's function of this name does, in float32 whatever the logits are.

    Args:
        logits: ``[.., V]``.
        labels: int64 ``[..]``.
        inplace_backward: let backward overwrite the logits. Unlike verl's, only where the caller says so, and where it
            can be seen that nobody else needs them.

    Returns:
        Log-probs ``[..]``, nats.
    """
    from logparity.integrations.scores import scores

    if inplace_backward:
        try:
            return scores(logits, labels, grad_into_logits=True)[0]
        except InputError:  # logits that somebody else needs: verl says so of all that it computes no entropy from
            pass
    return scores(logits, labels)[0]


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy ``[.., V]`` -> ``[..]`` as verl's function of this name gives it, in nats, with gradient."""
    from logparity.integrations.scores import entropy_of

    return entropy_of(logits)


def entropy_from_logits_with_chunking(logits: Tensor, chunk_size: int = 2048) -> Tensor:  # noqa: ARG001
    """The same for ``[N, V]``; the chunk size is ours to choose, results do not depend on it."""
    return entropy_from_logits(logits)


def use_token_log_probs() -> Replaced:
    """Replace verl's ``logprobs_from_logits`` and entropies by ours in this process.

    In a run, set the environment variable ``LOGPARITY_VERL_OPS=1``: the plug-in then calls this in every Ray worker.
    Vocabulary-parallel log-probs of verl's Megatron engine are not replaced.

    Returns:
        Where they were replaced; its ``undo`` puts verl's back.
    """
    home = import_module(_HOME)
    done = Replaced()
    for name in _NAMES:
        done += rebind("verl", getattr(home, name), globals()[name])
    return done


__all__ = [
    "calculate_debug_metrics",
    "calculate_token_level_prob_diff",
    "entropy_from_logits",
    "entropy_from_logits_with_chunking",
    "logprobs_from_logits",
    "use_token_log_probs",
]
