"""Log-probs that repeat a rollout engine's arithmetic bit by bit (true on-policy training).

An engine divides its logits by the temperature and takes a log-softmax over the full vocabulary, both in one dtype. To
get the same bits, the trainer does exactly that: it gathers the vocabulary, drops the padding, divides *before* the
log-softmax, and rounds where the engine rounds. What is right here is what the engine does, not what is most accurate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from logparity.notation import IGNORE_INDEX
from logparity.ops import checks
from logparity.ops.agreement import terms
from logparity.ops.blocks import BlockGrid
from logparity.ops.calls import axis_size, find_others
from logparity.ops.chunked import GradientPlace, scores_gradient
from logparity.ops.first_order import first_order_only
from logparity.ops.gradient import Upstream
from logparity.ops.options import ChunkSize, Entropy, Scoring, scoring
from logparity.ops.results import TokenLogProbs
from logparity.ops.rows import RowView
from logparity.ops.statistics import local_statistics
from logparity.ops.totals import RowTotals, gather_totals
from logparity.parallel.collectives import Exchange
from logparity.parallel.gather import columns_bytes, gather_columns
from logparity.parallel.groups import speaking_device
from logparity.parallel.vocab import ShardLayout, VocabShard

ROW_BYTES = 64 << 20
"""What the gathered rows of a chunk and their copies in the compute dtype take together, by default."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def on_policy_token_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    compute_dtype: torch.dtype | None = None,
    entropy: str = "none",
    shard: VocabShard | None = None,
    valid_vocab_size: int | None = None,
    chunk_size: ChunkSize = "auto",
) -> TokenLogProbs:
    """Score target tokens by a rollout engine's own arithmetic: divide, then log-softmax, all in one dtype.

    ::

        log_probs = log_softmax(logits.to(compute_dtype) / temperature)[target], widened to float32

    It owns the temperature: divide nothing before, and pass the result on as it is.

    Args:
        logits: ``[T, V_local]`` or ``[.., V_local]`` in model precision.
        targets: int64 global token ids in the shape of the leading axes; ``-100`` scores 0 without gradient.
        temperature: divides the logits; a float > 0 or one per target.
        compute_dtype: dtype of the division and the log-softmax; None for the logits' own, float32 for engines that
            upcast first.
        entropy: ``none``, ``value``, or ``grad``; computed exactly, as by `token_log_probs`.
        shard: the columns this rank holds; None where it holds all.
        valid_vocab_size: columns from here on are padding and are dropped.
        chunk_size: rows gathered at a time; equal on every rank.

    Returns:
        Scores in nats, in the shape of the targets; float32, or float64 where the log-softmax is in float64. The
        gradient is that of the exact function, rounded once to the logits' dtype.

    Raises:
        InputError: an argument is wrong; under a shard on every rank.

    Memory:
        A chunk of full-vocabulary rows and two copies in the compute dtype: 64 MiB by default. Under a shard a small
        collective first tells the ranks of each other's errors (on a GPU it is waited for), then one per chunk; none
        in backward.
    """
    columns = axis_size(logits, -1)
    layout, device = find_others(shard, columns, logits, targets)
    # Chunks have the same size on every rank only where nothing is wrong on any of them: that is asked first.
    with Exchange(layout, device) as first:
        checks.logits_tensor(logits)
        dtype = checks.compute_dtype(compute_dtype, logits.dtype)
        checks.columns_match(columns, layout.own, "logits")
        asked = scoring(
            targets,
            leading=logits.shape[:-1],
            device=logits.device,
            columns=layout.columns,
            temperature=temperature,
            entropy=entropy,
            valid_vocab_size=valid_vocab_size,
            chunk_size=chunk_size,
        )
        if not layout.alone:
            more = {"compute_dtype": str(dtype), "chunk_size": str(chunk_size)}
            first.agree(terms(asked, "on-policy", logits.dtype) | more)
            first(targets.new_empty(0))
    ignored = asked.targets == IGNORE_INDEX
    asked = replace(asked, targets=asked.targets.masked_fill(ignored, 0))
    with torch.autocast(logits.device.type, enabled=False):
        log_probs, entropies = _scores(logits, asked, layout, dtype)
    return TokenLogProbs(
        log_probs.masked_fill(ignored, 0.0).reshape(asked.shape),
        None if entropies is None else entropies.masked_fill(ignored, 0.0).reshape(asked.shape),
    )


def _chunk_rows(layout: ShardLayout, dtype: torch.dtype) -> int:
    return max(1, ROW_BYTES // (3 * layout.columns * dtype.itemsize))


def _scores(logits: Tensor, asked: Scoring, layout: ShardLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    if torch.is_grad_enabled() and logits.requires_grad:
        return _OnPolicyScores.apply(logits, asked, layout, dtype)  # type: ignore[no-untyped-call,no-any-return]
    log_probs, totals = _forward(logits, asked, layout, dtype, exact=asked.entropy is not Entropy.NONE)
    return log_probs, _entropy(totals, log_probs.dtype)


def _entropy(totals: RowTotals | None, dtype: torch.dtype) -> Tensor | None:
    return None if totals is None or totals.entropy is None else totals.entropy.to(dtype)


class _OnPolicyScores(torch.autograd.Function):
    """The engine's value, with the gradient of the exact function."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, asked: Scoring, layout: ShardLayout, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor | None]:
        log_probs, totals = _forward(logits, asked, layout, dtype, exact=True)
        assert totals is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, *totals)
        ctx.asked, ctx.layout = asked, layout
        entropy = _entropy(totals, log_probs.dtype)
        if entropy is not None and asked.entropy is Entropy.VALUE:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        logits, *totals = ctx.saved_tensors
        upstream, place = Upstream.of(*gradients), GradientPlace()
        gradient = scores_gradient(logits, ctx.asked, ctx.layout, place, RowTotals(*totals), upstream)
        return gradient, None, None, None


def _forward(
    logits: Tensor, asked: Scoring, layout: ShardLayout, dtype: torch.dtype, exact: bool
) -> tuple[Tensor, RowTotals | None]:
    view = RowView(logits, logits.shape[-1])
    rows = asked.chunk_size or _chunk_rows(layout, dtype)
    log_probs, totals = [], []
    # Without targets there is one empty chunk, so that every rank takes part in one collective.
    for start in range(0, max(1, len(asked)), rows):
        positions = torch.arange(start, min(start + rows, len(asked)), device=logits.device)
        part = asked.select(positions)
        full = _whole_rows(view, part, layout)[:, : asked.columns]
        log_probs.append(_engine_log_probs(full, part, dtype))
        if exact:
            totals.append(_exact_totals(full, part))
    merged = None
    if exact:
        merged = RowTotals._make(None if each[0] is None else torch.cat(each) for each in zip(*totals, strict=True))
    return torch.cat(log_probs), merged


def _whole_rows(view: RowView, part: Scoring, layout: ShardLayout) -> Tensor:
    device = part.targets.device
    size = columns_bytes(len(part), layout, view.itemsize)
    with Exchange(layout, speaking_device(layout.group, device), size) as exchange:
        if device.type == "cpu":
            exchange.agree({})  # errors are looked for
        return gather_columns(view.take(part.row_index()), exchange)


def _engine_log_probs(full: Tensor, part: Scoring, dtype: torch.dtype) -> Tensor:
    temperature = part.distribution.temperature
    values = full.to(dtype)
    if isinstance(temperature, Tensor):
        # Division in float32 rounded to the dtype is what torch does for a Python number as well.
        wide = torch.promote_types(dtype, torch.float32)
        values = torch.div(values, temperature.to(wide).unsqueeze(1)).to(dtype)
    elif temperature != 1.0:
        values = values / temperature
    log_p = torch.log_softmax(values, dim=-1)
    known = (part.targets >= 0) & (part.targets < part.columns)
    picked = log_p.gather(1, part.targets.masked_fill(~known, 0).unsqueeze(1)).squeeze(1)
    return picked.to(torch.promote_types(dtype, torch.float32)).masked_fill_(~known, torch.nan)


def _exact_totals(full: Tensor, part: Scoring) -> RowTotals:
    everything = replace(part, rows=None, chunk_size=None)
    grid = BlockGrid.of(0, part.columns, part.columns)
    return gather_totals(
        local_statistics(full, everything, grid), everything, Exchange(ShardLayout.whole(part.columns))
    )
