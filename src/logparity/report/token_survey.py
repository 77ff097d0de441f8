"""One pass over the stored rollouts: every token's two probabilities, the worst tokens, some responses to look at."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.probe.rollout_store import StoredRollout
from logparity.records import BoolArray, IntArray, SamplingSettings
from logparity.report.visible_text import visible

GRID_CELLS = 100
MAX_POINTS = 4000
_CONTEXT = 8
_MAX_TOKENS = 400
_LEVELS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True, slots=True)
class Token:
    """One response token for people.

    Args:
        text: with invisible characters made visible.
        rollout_prob: probability that the rollout engine gave it; None where the mask is 0 or it is not finite.
        train_prob: probability that the trainer gave it; None likewise.
        log_ratio: train minus rollout log-prob, nats; None likewise.
    """

    text: str
    rollout_prob: float | None
    train_prob: float | None
    log_ratio: float | None

    @property
    def gap(self) -> float | None:
        """``|dp|``."""
        if self.rollout_prob is None or self.train_prob is None:
            return None
        return abs(self.rollout_prob - self.train_prob)

    @property
    def level(self) -> int | None:
        """How strongly it is coloured, 0 to 6; None where it is not compared."""
        return None if self.gap is None else int(np.searchsorted(_LEVELS, self.gap, side="right"))


@dataclass(frozen=True, slots=True)
class WorstToken:
    """A token with a large ``|dp|`` and what stands around it."""

    step: int
    key: str
    position: int
    token: Token
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ShownResponse:
    """A response of the last step, token by token."""

    key: str
    reward: float
    mean_gap: float
    tokens: tuple[Token, ...]
    cut: int


@dataclass
class TokenSurvey:
    """What one pass over the rollouts found; fixed size, whatever the number of tokens.

    Args:
        compared: active tokens with both probabilities.
        excluded: active tokens without: a log-prob is NaN or +inf.
        stale_sequences: sequences sampled under older weights than those that scored them.
        sequences: all sequences.
        density: int64 ``[100, 100]``, tokens by rollout probability (rows) and train probability (columns).
        points: the pairs (rollout, train) themselves, as long as they are at most 4,000; else empty.
        worst: tokens with the largest ``|dp|``, largest first.
        responses: of the last step.
        engines: what sampled.
        samplings: how it was sampled.
    """

    compared: int = 0
    excluded: int = 0
    stale_sequences: int = 0
    sequences: int = 0
    density: IntArray = field(default_factory=lambda: np.zeros((GRID_CELLS, GRID_CELLS), np.int64))
    points: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    worst: list[WorstToken] = field(default_factory=list)
    responses: list[ShownResponse] = field(default_factory=list)
    engines: set[str] = field(default_factory=set)
    samplings: set[SamplingSettings] = field(default_factory=set)


def survey_tokens(rows: Iterable[StoredRollout], worst: int = 20, responses: int = 4) -> TokenSurvey:
    """Look at every stored token once.

    Args:
        rows: stored rollouts, in the order of their steps.
        worst: how many of the worst tokens to keep.
        responses: how many responses of the last step to keep: half those with the largest mean ``|dp|``, half those
            with the largest reward.

    Returns:
        What was found.
    """
    survey = TokenSurvey()
    heap: list[tuple[float, int, WorstToken]] = []
    last: list[StoredRollout] = []
    points: list[NDArray[Any]] | None = []
    for row in rows:
        if last and row.step != last[0].step:
            last = []
        last.append(row)
        probs, use = _probs(row)
        _count(survey, row, probs, use)
        if points is not None:
            points = [*points, probs[use]] if survey.compared <= MAX_POINTS else None
        for position in _candidates(np.abs(probs[:, 0] - probs[:, 1]), use, worst):
            gap = float(abs(probs[position, 0] - probs[position, 1]))
            if len(heap) < worst or gap > heap[0][0]:
                # The counter breaks ties, so that tokens themselves are never compared.
                entry = (gap, -survey.sequences * 10**7 - position, _worst(row, position))
                heapq.heappushpop(heap, entry) if len(heap) >= worst else heapq.heappush(heap, entry)
    survey.points = np.concatenate(points) if points else survey.points
    survey.worst = [token for *_, token in sorted(heap, key=lambda entry: entry[:2], reverse=True)]
    survey.responses = [_shown(row) for row in _chosen(last, responses)]
    return survey


def _probs(row: StoredRollout) -> tuple[NDArray[Any], BoolArray]:
    with np.errstate(over="ignore"):
        probs = np.exp(np.stack([row.rollout.rollout_log_probs, row.old_log_probs], axis=1))
    return probs, row.rollout.response_mask & np.isfinite(probs).all(axis=1)


def _count(survey: TokenSurvey, row: StoredRollout, probs: NDArray[Any], use: BoolArray) -> None:
    survey.sequences += 1
    survey.compared += int(use.sum())
    survey.excluded += int(row.rollout.response_mask.sum()) - int(use.sum())
    survey.stale_sequences += row.rollout.weight_version != row.train_weight_version
    cells = np.clip((probs[use] * GRID_CELLS).astype(np.int64), 0, GRID_CELLS - 1)
    np.add.at(survey.density, (cells[:, 0], cells[:, 1]), 1)
    engine = row.rollout.engine
    survey.engines.add(f"{engine.name} {engine.version}, {engine.dtype}, {engine.log_prob_mode.value} log-probs")
    survey.samplings.add(row.rollout.sampling)


def _candidates(gap: NDArray[Any], use: BoolArray, limit: int) -> list[int]:
    positions = np.flatnonzero(use)
    return [int(p) for p in positions[np.argsort(-gap[positions], kind="stable")[:limit]]]


def _tokens(row: StoredRollout, positions: range) -> tuple[Token, ...]:
    probs, use = _probs(row)
    with np.errstate(invalid="ignore"):
        log_ratio = row.old_log_probs.astype(np.float64) - row.rollout.rollout_log_probs
    tokens = []
    for p in positions:
        text = f"#{row.rollout.response_ids[p]}" if row.token_texts is None else visible(row.token_texts[p])
        values = (float(probs[p, 0]), float(probs[p, 1]), float(log_ratio[p])) if use[p] else (None, None, None)
        tokens.append(Token(text, *values))
    return tuple(tokens)


def _worst(row: StoredRollout, position: int) -> WorstToken:
    around = range(max(0, position - _CONTEXT), min(len(row.rollout), position + _CONTEXT + 1))
    tokens = _tokens(row, around)
    middle = position - around.start
    glue = " " if row.token_texts is None else ""
    before, after = (glue.join(t.text for t in part) for part in (tokens[:middle], tokens[middle + 1 :]))
    return WorstToken(row.step, row.rollout.key, position, tokens[middle], before, after)


def _mean_gap(row: StoredRollout) -> float:
    probs, use = _probs(row)
    return float(np.abs(probs[use, 0] - probs[use, 1]).mean(dtype=np.float64)) if use.any() else 0.0


def _chosen(rows: list[StoredRollout], limit: int) -> list[StoredRollout]:
    by_gap = sorted(rows, key=_mean_gap, reverse=True)
    worst, rest = by_gap[: (limit + 1) // 2], by_gap[(limit + 1) // 2 :]
    return worst + sorted(rest, key=lambda row: row.reward, reverse=True)[: limit - len(worst)]


def _shown(row: StoredRollout) -> ShownResponse:
    length = len(row.rollout)
    tokens = _tokens(row, range(min(length, _MAX_TOKENS)))
    return ShownResponse(row.rollout.key, row.reward, _mean_gap(row), tokens, max(0, length - _MAX_TOKENS))


__all__ = ["GRID_CELLS", "MAX_POINTS", "ShownResponse", "Token", "TokenSurvey", "WorstToken", "survey_tokens"]
