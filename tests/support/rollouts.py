"""Rollouts with scores, made from an engine dump or at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logparity.records import EngineInfo, LogProbMode, Rollout, SamplingSettings, ScoredTokens

PAIRS = Path(__file__).parents[1] / "data" / "pairs"
ENGINE = EngineInfo("vllm", "0.1", "bfloat16", LogProbMode.RAW)


def rollouts_of_dump(path: Path, version: int = 0) -> tuple[list[Rollout], ScoredTokens]:
    """The responses of a dump, ragged as they were, under the keys ``r0``, ``r1``, ..."""
    dump = np.load(path, allow_pickle=False)
    rollouts, scores = [], []
    for row, mask in enumerate(dump["response_mask"].astype(bool)):
        length = int(np.flatnonzero(mask)[-1]) + 1
        rollouts.append(
            Rollout(
                key=f"r{row}",
                group=f"g{row // 4}",
                prompt_ids=dump["prompts"][row][dump["prompt_mask"][row] > 0],
                response_ids=dump["responses"][row, :length],
                rollout_log_probs=dump["rollout_log_probs"][row, :length],
                response_mask=mask[:length],
                weight_version=version,
                sampling=SamplingSettings(max_new_tokens=96, stop_token_ids=(2,)),
                engine=ENGINE,
                text=f"response {row}",
            )
        )
        scores.append(dump["old_log_probs"][row, :length])
    return rollouts, ScoredTokens(tuple(r.key for r in rollouts), tuple(scores), weight_version=version)


def rollout_of(key: str, log_probs: list[float], mask: list[int] | None = None) -> Rollout:
    """A short response with given log-probs."""
    count = len(log_probs)
    return Rollout(
        key=key,
        group="g",
        prompt_ids=[1],
        response_ids=list(range(count)),
        rollout_log_probs=log_probs,
        response_mask=[1] * count if mask is None else mask,
        weight_version=0,
        sampling=SamplingSettings(),
        engine=ENGINE,
    )


def scored_of(**log_probs: list[float]) -> ScoredTokens:
    """Scores by key."""
    return ScoredTokens(tuple(log_probs), tuple(np.asarray(v, np.float32) for v in log_probs.values()))


def save_pair(folder: Path, stem: str, diff: np.ndarray, mask: np.ndarray) -> None:
    """A plain pair of files, as any tool may have written it."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"prob_diff{stem}.npy", diff)
    np.save(folder / f"prob_mask{stem}.npy", mask)


def save_dump_pairs(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """A pair per engine dump, steps 0, 1, ...; returns what was written."""
    written = []
    for step, path in enumerate(sorted(PAIRS.glob("*.npz"))):
        dump = np.load(path, allow_pickle=False)
        mask = dump["response_mask"].astype(bool)
        probs = (np.exp(dump[name]) for name in ("rollout_log_probs", "old_log_probs"))
        diff = np.where(mask, np.abs(np.subtract(*probs)), 0).astype(np.float32)
        save_pair(folder, f"_step_{step}", diff, mask)
        written.append((diff, mask))
    return written
