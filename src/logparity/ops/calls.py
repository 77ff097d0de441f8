"""What every public operation does around its numbers: failures shared, ignored targets left out, shapes restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from logparity.errors import LogparityError
from logparity.ops.options import Scoring
from logparity.ops.results import TokenLogProbs
from logparity.ops.totals import totals_payload
from logparity.parallel.collectives import exchange
from logparity.parallel.gather import gather_payload
from logparity.parallel.vocab import ShardLayout

Run = Callable[[Scoring], TokenLogProbs]


def tell_others(
    failure: LogparityError,
    layout: ShardLayout,
    like: Tensor,
    targets: Tensor,
    impl: str,
    entropy: str,
    support: bool,
    valid: int | None,
) -> None:
    """Take part in the collective that the other ranks wait in, with the failure as payload.

    Args:
        failure: what went wrong here.
        layout: who waits.
        like: gives dtype and device of what the reference gathers.
        targets: as the caller gave them.
        impl: as the caller gave it.
        entropy: as the caller gave it.
        support: whether there is one.
        valid: ``valid_vocab_size`` as the caller gave it.
    """
    if layout.alone:
        return
    count = targets.numel() if isinstance(targets, Tensor) else 0
    columns = valid if valid is not None and 1 <= valid <= layout.columns else layout.columns
    if impl == "reference":
        payload = gather_payload(count, layout, like)
    else:
        payload = totals_payload(count, layout, columns, entropy, support, like.device)
    exchange(payload, layout, failure=failure)


def scores_in_shape(asked: Scoring, run: Run) -> TokenLogProbs:
    """Run on the targets that are not ignored; the others score 0. Results come in the shape of the targets."""
    return _each(_without_ignored(asked, run), lambda values: values.reshape(asked.shape))


def _without_ignored(asked: Scoring, run: Run) -> TokenLogProbs:
    ignored = asked.targets == asked.ignore_index
    if ignored.device.type == "cpu":
        if not bool(ignored.any()):
            return run(asked)
        kept = ignored.logical_not().nonzero().flatten()
        scores = run(asked.select(kept))
        return _each(scores, lambda values: values.new_zeros(len(asked)).index_copy(0, kept, values))
    # Elsewhere, which targets are ignored is not known without waiting for the device: score them as id 0 and hide it.
    anything = replace(asked, targets=asked.targets.masked_fill(ignored, 0))
    return _each(run(anything), lambda values: values.masked_fill(ignored, 0.0))


def _each(scores: TokenLogProbs, change: Callable[[Tensor], Tensor]) -> TokenLogProbs:
    return TokenLogProbs._make(None if values is None else change(values) for values in scores)
