"""The comparison as two functions over a trainer's padded batch, with the names and keys that verl users know."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logparity.probe.npy_files import PairName, write_pair
from logparity.probe.pairs import PROVIDED_BY, TokenPairs, missing_entries, read_batch
from logparity.probe.prob_diff import grid, prob_diff
from logparity.probe.prob_metrics import PREFIX, ProbAggregates

logger = logging.getLogger("logparity.probe")


def calculate_token_level_prob_diff(
    data: Any,
    save_dir: str | Path | None = None,
    step: int | None = None,
    token_max_print: int = 10,
    sample_max_print: int = 8,
    sub_step: int | None = None,
    attempt: int | None = None,
    keys: Sequence[str] | None = None,
) -> dict[str, float]:
    """Compare rollout and train probabilities token by token: ``|exp(rollout_log_probs) - exp(old_log_probs)|``.

    The batch is left as it is. Where an entry is missing, or the files cannot be written, one warning says so.

    Args:
        data: has ``batch``, a mapping with ``rollout_log_probs``, ``old_log_probs``, ``responses`` ``[B, R]`` and
            ``response_mask`` ``[B, R]`` (or ``attention_mask`` ``[B, P+R]``, whose last ``R`` columns serve); arrays
            or tensors of any float dtype, nats.
        save_dir: folder for ``prob_diff_step_{step}.npy`` (float32, 0 where the mask is 0) and
            ``prob_mask_step_{step}.npy`` (bool); None writes nothing. An existing pair is kept: the new one ends in
            ``_attempt{n}``.
        step: training step in the file names; None leaves it out of them.
        token_max_print: positions per sample in the grid, from the start of the response.
        sample_max_print: samples in the grid.
        sub_step: optimisation sub-step within the step; files of the second and later ones end in ``_sub{k}``.
        attempt: how often the step has been run, from 1.
        keys: ``B`` sample keys, written beside the pair: row numbers do not identify a sample once rows are reordered.

    Returns:
        ``training/rollout_probs_diff/s{sample}_p{position:04d}`` to ``|dp|``; empty where an entry is missing.

    Raises:
        InputError: entries differ in shape.
    """
    pairs = _pairs_or_warn(data, keys)
    if pairs is None:
        return {}
    diff = prob_diff(pairs)
    if save_dir is not None:
        try:
            write_pair(Path(save_dir), PairName.of(step, sub_step, attempt), diff, pairs.mask, keys=pairs.keys)
        except OSError as error:
            logger.warning("Token-level comparison: no file written to %s (%s); metrics go on.", save_dir, error)
    return grid(diff, pairs.mask, token_max_print, sample_max_print)


def calculate_debug_metrics(data: Any) -> dict[str, float]:
    """Aggregate ``|dp|`` and the correlation of both probabilities over a batch, as verl names and defines them.

    Args:
        data: as for `calculate_token_level_prob_diff`.

    Returns:
        ``training/rollout_probs_diff_{valid,max,mean,std}`` (``std`` with ``ddof = 1``) and
        ``training/rollout_actor_probs_pearson_corr``, computed from float32 log-probs in float64. A value that is
        undefined is left out, and one warning says why; ``valid`` is 0 where no token could be compared.

    Raises:
        InputError: entries differ in shape.
    """
    pairs = _pairs_or_warn(data, None)
    if pairs is None:
        return {f"{PREFIX}_valid": 0.0}
    aggregates = ProbAggregates.of(pairs, prob_diff(pairs))
    notes = [aggregates.undefined()]
    if aggregates.excluded:
        notes.append(f"{aggregates.excluded} active tokens left out: a log-prob is NaN or +inf")
    if any(notes):
        logger.warning("Token-level comparison: %s.", "; ".join(note for note in notes if note))
    return aggregates.metrics()


def _pairs_or_warn(data: Any, keys: Sequence[str] | None) -> TokenPairs | None:
    missing = missing_entries(data)
    if missing:
        hints = "; ".join(f"{name}: {PROVIDED_BY[name]}" for name in missing)
        logger.warning("Token-level comparison skipped, the batch lacks %s. %s.", ", ".join(missing), hints)
        return None
    pairs = read_batch(data, keys)
    if pairs.mask_name == "attention_mask":
        logger.warning(
            "Token-level comparison: no response_mask, the last columns of attention_mask serve in its place; "
            "tokens that a tool wrote are counted as the policy's."
        )
    return pairs


__all__ = ["calculate_debug_metrics", "calculate_token_level_prob_diff"]
