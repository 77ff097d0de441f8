"""Score a file of sequences with an actor, write the result beside it, and compare with the engine's log-probs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logparity.actors.base import Actor
from logparity.errors import InputError, RunFolderError
from logparity.probe.atomic import atomic_file
from logparity.probe.log_metrics import log_space_metrics
from logparity.probe.pairs import TokenPairs
from logparity.probe.prob_diff import prob_diff
from logparity.probe.prob_metrics import ProbAggregates
from logparity.records import FloatArray, ScoredTokens, TokenBatch
from logparity.training.score_source import Sequence

_TOGETHER = 256
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.bool_())),
        ("temperature", pa.float32()),
        ("log_probs", pa.list_(pa.float32())),
        ("entropy", pa.list_(pa.float32())),
        ("rollout_log_probs", pa.list_(pa.float32())),
    ]
)


@dataclass(slots=True)
class ScoreSummary:
    """What was scored, and how it compares.

    Args:
        sequences: sequences scored.
        tokens: response tokens scored, inactive ones included.
        truncated: sequences whose engine renormalised over a cut vocabulary.
        metrics: comparison with the engine's log-probs; empty where the file has none.
    """

    sequences: int = 0
    tokens: int = 0
    truncated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


def score_file(
    actor: Actor,
    sequences: Iterable[Sequence],
    out: Path,
    *,
    entropy: bool = False,
    temperature: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> ScoreSummary:
    """Score sequences, in portions, into a Parquet file that is there whole or not at all.

    Args:
        actor: scores them.
        sequences: what to score.
        out: Parquet file to write, one row a sequence.
        entropy: also write the full-vocabulary entropy.
        temperature: divides all logits in place of the temperature that each sequence names.
        progress: called with the number of sequences scored so far.

    Returns:
        Counts, and the comparison over all sequences that carry rollout log-probs.

    Raises:
        InputError: there is no sequence, or one cannot be scored.
        RunFolderError: the file cannot be written.
    """
    summary, compared = ScoreSummary(), _Compared()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for portion in _portions(sequences):
                scored = actor.score(_batch(portion, temperature), entropy=entropy)
                rows = [_row(s, scored, i, temperature) for i, s in enumerate(portion)]
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
                compared.add(portion, scored)
                summary.sequences += len(portion)
                summary.tokens += sum(len(s.response_ids) for s in portion)
                summary.truncated += sum(s.truncated for s in portion)
                if progress is not None:
                    progress(summary.sequences)
            if not summary.sequences:
                raise InputError("expected at least one sequence to score, got an empty file.")
    except OSError as error:
        raise RunFolderError(f"{out}: expected a place to write to, got {error}. Give another with --out.") from error
    summary.metrics = compared.metrics()
    return summary


class _Compared:
    """Log-probs of both sides, collected while portions pass."""

    def __init__(self) -> None:
        self._rows: list[tuple[FloatArray, FloatArray, Any]] = []

    def add(self, portion: list[Sequence], scored: ScoredTokens) -> None:
        for sequence, log_probs in zip(portion, scored.log_probs, strict=True):
            if sequence.rollout_log_probs is not None:
                self._rows.append((sequence.rollout_log_probs, log_probs, sequence.response_mask))

    def metrics(self) -> dict[str, float]:
        if not self._rows:
            return {}
        width = max(len(mask) for _, _, mask in self._rows)
        rollout, old, mask = (
            np.stack([np.pad(row[side], (0, width - len(row[side]))) for row in self._rows]) for side in range(3)
        )
        pairs = TokenPairs(rollout, old, mask)
        return ProbAggregates.of(pairs, prob_diff(pairs)).metrics() | log_space_metrics(pairs)


def _portions(sequences: Iterable[Sequence]) -> Iterator[list[Sequence]]:
    source = iter(sequences)
    while portion := list(islice(source, _TOGETHER)):
        yield portion


def _batch(portion: list[Sequence], temperature: float | None) -> TokenBatch:
    return TokenBatch(
        keys=tuple(s.key for s in portion),
        prompt_ids=tuple(s.prompt_ids for s in portion),
        response_ids=tuple(s.response_ids for s in portion),
        response_mask=tuple(s.response_mask for s in portion),
        temperature=np.asarray([temperature or s.temperature for s in portion], dtype=np.float32),
    )


def _row(sequence: Sequence, scored: ScoredTokens, index: int, temperature: float | None) -> dict[str, Any]:
    return {
        "key": sequence.key,
        "response_ids": sequence.response_ids,
        "response_mask": sequence.response_mask,
        "temperature": temperature or sequence.temperature,
        "log_probs": scored.log_probs[index],
        "entropy": None if scored.entropy is None else scored.entropy[index],
        "rollout_log_probs": sequence.rollout_log_probs,
    }


__all__ = ["SCHEMA", "ScoreSummary", "score_file"]
