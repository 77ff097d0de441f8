"""Rollouts of a step as one Parquet file: one row per sequence, list columns, a versioned schema.

Any Parquet reader opens the files as they are. ``log_ratio`` is ``old_log_probs - rollout_log_probs``, not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logparity.errors import InputError
from logparity.probe.atomic import atomic_file
from logparity.records import EngineInfo, FinishReason, FloatArray, LogProbMode, Rollout, SamplingSettings, ScoredTokens

SCHEMA_VERSION = 1
_VERSION_KEY = b"logparity.rollouts.version"

_SAMPLING = pa.struct(
    [
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("top_k", pa.int64()),
        ("min_p", pa.float64()),
        ("max_new_tokens", pa.int64()),
        ("stop_token_ids", pa.list_(pa.int64())),
    ]
)
_ENGINE = pa.struct(
    [("name", pa.string()), ("version", pa.string()), ("dtype", pa.string()), ("log_prob_mode", pa.string())]
)
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("key", pa.string()),
        ("group", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.bool_())),
        ("rollout_log_probs", pa.list_(pa.float32())),
        ("old_log_probs", pa.list_(pa.float32())),
        ("reward", pa.float64()),
        ("advantages", pa.list_(pa.float32())),
        ("token_texts", pa.list_(pa.string())),
        ("text", pa.string()),
        ("finish_reason", pa.string()),
        ("rollout_weight_version", pa.int64()),
        ("train_weight_version", pa.int64()),
        ("sampling", _SAMPLING),
        ("engine", _ENGINE),
    ],
    metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()},
)


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One sequence with both log-probs and its training signal, as read back.

    Args:
        step: training step.
        rollout: what was sampled.
        old_log_probs: float32 ``[R]``, nats, from the trainer before the update.
        reward: scalar reward of the sequence.
        advantages: float32 ``[R]``.
        token_texts: ``R`` strings, the text of each response token; None where no tokenizer was at hand.
        train_weight_version: version of the weights that scored.
    """

    step: int
    rollout: Rollout
    old_log_probs: FloatArray
    reward: float
    advantages: FloatArray
    token_texts: tuple[str, ...] | None
    train_weight_version: int


def write_rollouts(
    path: Path,
    step: int,
    rollouts: Sequence[Rollout],
    scored: ScoredTokens,
    rewards: Sequence[float],
    advantages: Sequence[Any],
    token_texts: Sequence[Sequence[str]] | None = None,
) -> None:
    """Write one step's rollouts into a Parquet file, whole or not at all.

    Args:
        path: the file; its folder is made, an existing file replaced.
        step: training step.
        rollouts: ``B`` sequences.
        scored: the trainer's log-probs of them, matched by key.
        rewards: ``B`` scalars, in the order of the rollouts.
        advantages: ``B`` arrays ``[R_b]``, or ``B`` scalars that hold for every token of a sequence.
        token_texts: ``B`` lists of ``R_b`` strings.

    Raises:
        InputError: a list is not as long as the rollouts or the sequence it belongs to.
        OSError: the file cannot be written.
    """
    scores = dict(iter(scored))
    for name, values in (("rewards", rewards), ("advantages", advantages), ("token_texts", token_texts)):
        if values is not None and len(values) != len(rollouts):
            raise InputError(f"{name}: expected {len(rollouts)} entries, one per rollout, got {len(values)}.")
    rows = []
    for index, rollout in enumerate(rollouts):
        per_token = {
            "old_log_probs": scores.get(rollout.key, ()),
            "advantages": np.broadcast_to(advantages[index], len(rollout))
            if np.ndim(advantages[index]) == 0
            else advantages[index],
            "token_texts": None if token_texts is None else token_texts[index],
        }
        for name, tokens in per_token.items():
            if tokens is not None and len(tokens) != len(rollout):
                raise InputError(
                    f"{name} of sample {rollout.key!r}: expected {len(rollout)} values, got {len(tokens)}."
                )
        rows.append(_row(step, rollout, float(rewards[index]), scored.weight_version, per_token))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file, compression="zstd")


def read_rollouts(source: Path) -> Iterator[StoredRollout]:
    """Read rollouts back, one at a time: a folder may be larger than memory.

    Args:
        source: a Parquet file that `write_rollouts` wrote, or a folder of them, read in the order of their names.

    Yields:
        Sequences in the order they were written.

    Raises:
        InputError: there is no such file, or it was written in a schema this version does not read.
    """
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    if not files or not files[0].exists():
        raise InputError(f"{source}: expected a Parquet file of rollouts or a folder of them, got none.")
    for path in files:
        yield from _read_file(path)


def is_rollouts(path: Path) -> bool:
    """Whether a Parquet file says that `write_rollouts` wrote it, in whatever version.

    Args:
        path: the file.

    Returns:
        False for any other Parquet file.

    Raises:
        InputError: it is not a readable Parquet file.
    """
    with _open(path) as file:
        return _VERSION_KEY in (file.schema_arrow.metadata or {})


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path.name}: expected a Parquet file, got an unreadable one ({error}).") from error


def _read_file(path: Path) -> Iterator[StoredRollout]:
    with _open(path) as file:
        found = (file.schema_arrow.metadata or {}).get(_VERSION_KEY)
        if found != str(SCHEMA_VERSION).encode():
            got = "none" if found is None else found.decode(errors="replace")
            raise InputError(f"{path.name}: expected rollouts in schema version {SCHEMA_VERSION}, got {got}.")
        for batch in file.iter_batches(batch_size=64):
            yield from (_stored(row) for row in batch.to_pylist())


def _row(step: int, rollout: Rollout, reward: float, train_version: int, per_token: dict[str, Any]) -> dict[str, Any]:
    sampling, engine = rollout.sampling, rollout.engine
    return {
        "step": step,
        "key": rollout.key,
        "group": rollout.group,
        "prompt_ids": rollout.prompt_ids,
        "response_ids": rollout.response_ids,
        "response_mask": rollout.response_mask,
        "rollout_log_probs": rollout.rollout_log_probs,
        "old_log_probs": np.asarray(per_token["old_log_probs"], np.float32),
        "reward": reward,
        "advantages": np.asarray(per_token["advantages"], np.float32),
        "token_texts": None if per_token["token_texts"] is None else list(per_token["token_texts"]),
        "text": rollout.text,
        "finish_reason": rollout.finish_reason.value,
        "rollout_weight_version": rollout.weight_version,
        "train_weight_version": train_version,
        "sampling": {name: getattr(sampling, name) for name in _SAMPLING.names},
        "engine": {
            "name": engine.name,
            "version": engine.version,
            "dtype": engine.dtype,
            "log_prob_mode": engine.log_prob_mode.value,
        },
    }


def _stored(row: dict[str, Any]) -> StoredRollout:
    sampling, engine = row["sampling"], row["engine"]
    return StoredRollout(
        step=row["step"],
        rollout=Rollout(
            key=row["key"],
            group=row["group"],
            prompt_ids=row["prompt_ids"],
            response_ids=row["response_ids"],
            rollout_log_probs=row["rollout_log_probs"],
            response_mask=row["response_mask"],
            weight_version=row["rollout_weight_version"],
            sampling=SamplingSettings(**{**sampling, "stop_token_ids": tuple(sampling["stop_token_ids"])}),
            engine=EngineInfo(engine["name"], engine["version"], engine["dtype"], LogProbMode(engine["log_prob_mode"])),
            finish_reason=FinishReason(row["finish_reason"]),
            text=row["text"],
        ),
        old_log_probs=np.asarray(row["old_log_probs"], np.float32),
        reward=row["reward"],
        advantages=np.asarray(row["advantages"], np.float32),
        token_texts=None if row["token_texts"] is None else tuple(row["token_texts"]),
        train_weight_version=row["train_weight_version"],
    )


__all__ = ["SCHEMA", "SCHEMA_VERSION", "StoredRollout", "is_rollouts", "read_rollouts", "write_rollouts"]
