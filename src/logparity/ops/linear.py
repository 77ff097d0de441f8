"""`linear_token_log_probs`: scores straight from hidden states; the logits never exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from logparity.errors import InputError
from logparity.notation import IGNORE_INDEX
from logparity.ops import checks
from logparity.ops.agreement import agree
from logparity.ops.calls import axis_size, open_exchange, scores_in_shape
from logparity.ops.choice import choose
from logparity.ops.linear_chunked import linear_scores
from logparity.ops.options import ChunkSize, Scoring, scoring
from logparity.ops.reference import reference_scores
from logparity.ops.results import TokenLogProbs
from logparity.ops.statistics import working_dtype
from logparity.ops.support import Support
from logparity.ops.tiles import Head
from logparity.parallel.collectives import Exchange
from logparity.parallel.vocab import VocabShard


@torch.compiler.disable  # type: ignore[untyped-decorator]
def linear_token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
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
    logits_dtype: torch.dtype | None = None,
    validate: bool | None = None,
    impl: str = "auto",
) -> TokenLogProbs:
    r"""Score target tokens from the hidden states that an output layer would turn into logits.

    ::

        logits = hidden @ weight.T + bias,    then as `token_log_probs`

    Logits are made in tiles of some rows times 4,096 columns, used, and forgotten; backward makes them again. So memory
    is bounded in the number of tokens and in the vocabulary, and every option of `token_log_probs` that does not speak
    of the logits' own memory is here too. Under autocast, products are made in its dtype, as a linear layer's are.

    **Tensor parallel.** With a ``shard`` each rank gives its rows of the weight. Scores come out whole on every rank.
    The gradient of ``hidden`` comes out as this rank's *partial sum*, like that of any column-parallel layer: the
    backward of whatever copied the hidden states to all ranks sums it (Megatron's column-parallel linear does;
    otherwise wrap ``hidden`` in a function whose backward is an all-reduce). Gradients of ``weight`` and ``bias`` are
    whole. Errors and arguments that differ between ranks are raised on all ranks, as by `token_log_probs`, which also
    says what is not supported under ``torch.compile`` and ``torch.func``.

    Args:
        hidden: ``[T, H]`` or ``[.., H]``; bfloat16, float16, float32, or float64.
        weight: ``[V_local, H]`` in the dtype of ``hidden``; may be tied to the embedding.
        targets: int64 global token ids in the shape of the leading axes (``[N]`` with ``rows``).
        bias: ``[V_local]``; added in float32.
        temperature: divides logits, in float32 after the row's maximum is taken off; a number > 0, a 0-d tensor, or a
            tensor with one per target.
        entropy: ``none``, ``value``, or ``grad`` (with a gradient through it).
        support: the sampler's ids per target; adds log-probs renormalised over them.
        shard: the columns this rank holds; None where it holds all.
        valid_vocab_size: columns from here on are padding and never enter the softmax.
        rows: int64 ``[N]`` flat indices of the hidden states that targets, per-target temperatures, and support belong
            to; only these are multiplied, the others get a gradient of exactly 0.
        ignore_index: targets with this id score 0 and get no gradient.
        logit_softcap: ``c * tanh(logits / c)`` before everything else (Gemma).
        logit_scale: factor on the logits after the softcap (Granite, Cohere); applied with the temperature.
        chunk_size: rows multiplied at a time; ``auto`` takes 1,024. Their tile is held in ``logits_dtype``, and a
            slice of it, 1 MiB, in full precision.
        logits_dtype: dtype of a tile of logits; None for that of ``hidden``, whose rounding is that of a plain output
            layer (0.01 nats in bfloat16). ``torch.float32`` keeps the sums as they are accumulated: float32 accuracy
            from bfloat16 weights. On CPU that makes the products several times slower.
        validate: check values (targets, rows, temperature, support): None on CPU only, since a check waits for the
            device; True everywhere; False nowhere. Unchecked bad targets score NaN, as does everything where another
            rank failed on a GPU.
        impl: ``auto``, ``reference`` (float64, the specification), or ``chunked``.

    Returns:
        Scores in nats, in the shape of the targets; float32, or float64 for float64 hidden states. Values do not depend
        on ``chunk_size`` as far as tiles go; a matrix product of other rows may differ in the last bit.

    Raises:
        InputError: an argument is wrong; under a shard on every rank.
        SupportError: a support is empty, has ids outside the vocabulary, or lacks its target.
        ShardError: shards overlap or leave a gap (checked once per group).

    Memory:
        A tile, ``chunk_size * 4096`` values, and 2 to 5 MiB. Backward adds the gradients: hidden states in float32 and
        in their dtype, the weight, and, with more rows than one chunk, a tile's weight in float32.
    """
    columns = axis_size(weight, 0)
    with open_exchange(shard, hidden, columns, targets, rows=rows, impl=impl, support=support is not None) as exchange:
        _check_tensors(hidden, weight, bias)
        checks.columns_match(columns, exchange.layout.own, "weight")
        head = _head(hidden, weight, bias, logits_dtype)
        asked = scoring(
            targets,
            leading=hidden.shape[:-1],
            device=hidden.device,
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
        impl = choose(impl, device=hidden.device, dtype=hidden.dtype).impl
        agree(exchange, asked, impl, head.hidden.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            return scores_in_shape(
                asked, lambda some: _scores(head, some, exchange, impl), may_wait=impl == "reference"
            )


def _scores(head: Head, asked: Scoring, exchange: Exchange, impl: str) -> TokenLogProbs:
    """Score targets whose hidden states are picked out first: only those are worth a matrix product."""
    if asked.rows is not None:
        head = replace(head, hidden=head.hidden[asked.rows])
        asked = replace(asked, rows=None)
    if impl == "reference":
        return _reference(head, asked, exchange)
    return linear_scores(head, asked, exchange)


def _reference(head: Head, asked: Scoring, exchange: Exchange) -> TokenLogProbs:
    logits = head.hidden.double() @ head.weight.double().t()
    if head.bias is not None:
        logits = logits + head.bias.double()
    dtype = working_dtype(head.hidden.dtype)
    scores = reference_scores(logits, asked, exchange)
    return TokenLogProbs._make(None if each is None else each.to(dtype) for each in scores)


def _head(hidden: Tensor, weight: Tensor, bias: Tensor | None, logits_dtype: torch.dtype | None) -> Head:
    """The output layer in the dtype that its products are made in."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    elif weight.dtype != hidden.dtype:
        raise InputError(
            f"weight: expected {hidden.dtype}, the dtype of hidden, got {weight.dtype}. "
            "Cast one of them, or call under torch.autocast."
        )
    dtype = hidden.dtype if logits_dtype is None else logits_dtype
    if dtype not in (hidden.dtype, working_dtype(hidden.dtype)):
        raise InputError(
            f"logits_dtype: expected None, {hidden.dtype} (the dtype of hidden), or {working_dtype(hidden.dtype)}, "
            f"got {logits_dtype}."
        )
    return Head(hidden.reshape(-1, hidden.shape[-1]), weight, bias, dtype)


def _check_tensors(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    checks.precision("hidden", hidden, "[.., H]")
    checks.precision("weight", weight, "[V_local, H]")
    if bias is not None:
        checks.precision("bias", bias, "[V_local]")
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1] or not weight.numel():
        raise InputError(
            f"weight: expected [V_local, H] with H = {hidden.shape[-1] if hidden.dim() else '?'}, the last axis of "
            f"hidden {list(hidden.shape)}, got {list(weight.shape)}. A head's weight has one row per token id."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"bias: expected {list(weight.shape[:1])}, one per row of weight, got {list(bias.shape)}.")
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.device != hidden.device:
            raise InputError(f"{name}: expected on {hidden.device}, like hidden, got {other.device}. Move one of them.")
