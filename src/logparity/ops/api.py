"""`token_log_probs`: the one verb for scores from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from logparity.notation import IGNORE_INDEX
from logparity.ops import checks
from logparity.ops.agreement import agree
from logparity.ops.calls import axis_size, open_exchange, scores_in_shape
from logparity.ops.choice import choose
from logparity.ops.chunked import GradientPlace, chunked_scores
from logparity.ops.guards import gradient_place
from logparity.ops.options import ChunkSize, Scoring, scoring
from logparity.ops.reference import reference_scores
from logparity.ops.results import TokenLogProbs
from logparity.ops.support import Support
from logparity.parallel.collectives import Exchange
from logparity.parallel.vocab import VocabShard


@torch.compiler.disable  # type: ignore[untyped-decorator]
def token_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    entropy: str = "none",
    support: Support | None = None,
    shard: VocabShard | None = None,
    valid_vocab_size: int | None = None,
    rows: Tensor | Sequence[int] | None = None,
    ignore_index: int = IGNORE_INDEX,
    logit_softcap: float | None = None,
    logit_scale: float | None = None,
    chunk_size: ChunkSize = "auto",
    grad_into_logits: bool = False,
    grad_buffer: Tensor | None = None,
    validate: bool | None = None,
    impl: str = "auto",
) -> TokenLogProbs:
    r"""Score target tokens from logits in model precision, exactly, holding only a few rows in float32.

    ::

        log_probs = log_softmax(y / temperature)[target],    y = scale * softcap * tanh(logits / softcap)
        entropy   = -sum_j p_j log p_j,                      p = softmax(y / temperature)

    The result is bitwise the same for every ``chunk_size``, thread count, and set of other rows, and, where shard
    edges are multiples of 1,024, for every number of shards (on CPU). Logits are never modified unless
    ``grad_into_logits`` says so.

    **Tensor parallel.** With a ``shard``, one collective per call carries every rank's numbers, error, and a summary of
    what it was asked for: an error on one rank, or arguments that differ between ranks, are raised on all of them. Only
    ranks whose numbers of rows differ by more than their rounding to 64, or of which only some have a ``support`` or
    ``impl="reference"``, cannot exchange at all: gloo ends the process then, NCCL hangs until its timeout.

    A compiled model around this works with a graph break here; ``fullgraph=True``, ``torch.vmap``, and the transforms
    of ``torch.func`` are not supported and raise.

    Args:
        logits: ``[T, V_local]`` or ``[.., V_local]``; bfloat16, float16, float32, or float64. A logit of -inf has
            probability 0. A row with NaN or +inf, or wholly -inf, scores NaN.
        targets: int64 global token ids in the shape of the leading axes (``[N]`` with ``rows``).
        temperature: divides logits, in float32 after the row's maximum is taken off; a number > 0, a 0-d tensor, or a
            tensor with one per target.
        entropy: ``none``, ``value``, or ``grad`` (with a gradient through it).
        support: the sampler's ids per target; adds log-probs renormalised over them. Other results stay over the
            full vocabulary.
        shard: the columns this rank holds; None where it holds all.
        valid_vocab_size: columns from here on are padding and never enter the softmax.
        rows: int64 ``[N]`` flat indices of the rows that targets, per-target temperatures, and support belong to;
            other rows get a gradient of exactly 0.
        ignore_index: targets with this id score 0 and get no gradient.
        logit_softcap: ``c * tanh(logits / c)`` before everything else (Gemma).
        logit_scale: factor on the logits after the softcap (Granite, Cohere); applied with the temperature.
        chunk_size: upper bound on the rows held in full precision; ``auto`` fits them to a CPU's cache.
        grad_into_logits: let backward overwrite the logits with their gradient. One backward only; nobody else may
            need the logits after.
        grad_buffer: a tensor like the logits that backward writes the gradient to, whatever it held. One backward only.
        validate: check values (targets, rows, temperature, support): None on CPU only, since a check waits for the
            device; True everywhere; False nowhere. Unchecked bad targets score NaN, as does everything where another
            rank failed on a GPU.
        impl: ``auto``, ``reference`` (float64, the specification), or ``chunked``.

    Returns:
        Scores in nats, in the shape of the targets; float32, or float64 for float64 logits.

    Raises:
        InputError: an argument is wrong; under a shard on every rank.
        SupportError: a support is empty, has ids outside the vocabulary, or lacks its target.
        ShardError: shards overlap or leave a gap (checked once per group).

    Memory:
        At most 8 MiB of rows in full precision, a few MiB of block statistics, and tens of bytes per target. Backward
        keeps the caller's logits and numbers per target, and adds the gradient in the logits' dtype unless it has
        another place to go.
    """
    columns = axis_size(logits, -1)
    with open_exchange(shard, logits, columns, targets, rows=rows, impl=impl, support=support is not None) as exchange:
        checks.logits_tensor(logits)
        checks.columns_match(columns, exchange.layout.own, "logits")
        asked = scoring(
            targets,
            leading=logits.shape[:-1],
            device=logits.device,
            columns=exchange.layout.columns,
            temperature=temperature,
            entropy=entropy,
            support=support,
            valid_vocab_size=valid_vocab_size,
            rows=rows,
            ignore_index=ignore_index,
            logit_softcap=logit_softcap,
            logit_scale=logit_scale,
            chunk_size=chunk_size,
            validate=validate,
        )
        impl = choose(impl, device=logits.device, dtype=logits.dtype).impl
        place = gradient_place(logits, grad_into_logits, grad_buffer)
        agree(exchange, asked, impl, logits.dtype)
        with torch.autocast(logits.device.type, enabled=False):
            return scores_in_shape(
                asked, lambda some: _run(logits, some, exchange, place, impl), may_wait=impl == "reference"
            )


def _run(logits: Tensor, asked: Scoring, exchange: Exchange, place: GradientPlace, impl: str) -> TokenLogProbs:
    if impl == "reference":
        return reference_scores(logits, asked, exchange)
    return chunked_scores(logits, asked, exchange, place)
