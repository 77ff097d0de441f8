"""Tables of the store, one per tier. The version goes up when a column changes its meaning or is taken away."""

from __future__ import annotations

from enum import Enum
from typing import Final

import pyarrow as pa

STORE_VERSION: Final = 1
VERSION_KEY: Final = b"logparity.store.version"


class Tier(str, Enum):
    """What is kept, by the prefix of its files; in the order in which a quota deletes, last first."""

    SUMMARY = "summary"
    WORST = "worst"
    SAMPLES = "samples"
    TOKENS = "tokens"


_META = {VERSION_KEY: str(STORE_VERSION).encode()}
_WHERE = [
    pa.field("step", pa.int64()),
    pa.field("sub_step", pa.int32()),
    pa.field("rank", pa.int32()),
    pa.field("attempt", pa.int32()),
]
_GROUP = pa.struct(
    [("group", pa.string()), ("label", pa.string()), ("count", pa.int64())]
    + [(name, pa.float64()) for name in ("log_ratio", "log_ratio_abs", "prob_diff", "k3")]
)
_PLACE = pa.struct(
    [
        *(("defect", pa.string()), ("count", pa.int64()), ("key", pa.string()), ("position", pa.int64())),
        *(("side", pa.string()), ("value", pa.string())),
    ]
)
_BIN = pa.struct([("low", pa.float32()), ("high", pa.float32()), ("count", pa.int64())])

SUMMARY: Final = pa.schema(
    [
        *_WHERE,
        pa.field("run_id", pa.string()),
        pa.field("time", pa.float64()),
        pa.field("metrics", pa.map_(pa.string(), pa.float64())),
        pa.field("groups", pa.list_(_GROUP)),
        pa.field("census", pa.list_(_PLACE)),
        pa.field("prob_diff_histogram", pa.list_(_BIN)),
        pa.field("log_ratio_histogram", pa.list_(_BIN)),
        pa.field("alarms", pa.list_(pa.string())),
        pa.field("state", pa.binary()),
    ],
    metadata=_META,
)
"""T0: one row a unit. ``state`` is what merges over ranks, JSON compressed by zlib."""

WORST: Final = pa.schema(
    [
        *_WHERE,
        pa.field("key", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("token_id", pa.int32()),
        pa.field("text", pa.string()),
        pa.field("rollout_log_prob", pa.float32()),
        pa.field("old_log_prob", pa.float32()),
        pa.field("log_ratio", pa.float32()),
        pa.field("prob_diff", pa.float32()),
        pa.field("context_start", pa.int64()),
        pa.field("context_ids", pa.list_(pa.int32())),
        pa.field("context_texts", pa.list_(pa.string())),
        pa.field("context_rollout_log_probs", pa.list_(pa.float32())),
        pa.field("context_old_log_probs", pa.list_(pa.float32())),
        pa.field("context_mask", pa.list_(pa.bool_())),
    ],
    metadata=_META,
)
"""T1: one row a token, the worst first."""

SAMPLES: Final = pa.schema(
    [
        *_WHERE,
        pa.field("key", pa.string()),
        pa.field("mask", pa.list_(pa.bool_())),
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("texts", pa.list_(pa.string())),
        pa.field("rollout_log_probs", pa.list_(pa.float32())),
        pa.field("old_log_probs", pa.list_(pa.float32())),
        pa.field("entropy", pa.list_(pa.float32())),
    ],
    metadata=_META,
)
"""T2: one row a sample."""

TOKENS: Final = pa.schema(
    [
        *_WHERE,
        pa.field("key", pa.string()),
        pa.field("turn_starts", pa.list_(pa.int32())),
        pa.field("turn_lengths", pa.list_(pa.int32())),
        pa.field("rollout_log_probs", pa.list_(pa.float16())),
        pa.field("log_ratio", pa.list_(pa.float16())),
        pa.field("token_ids", pa.list_(pa.int32())),
    ],
    metadata=_META,
)
"""T3: one row a sequence, valid tokens only; the turns say at which positions they are."""

SCHEMAS: Final = {Tier.SUMMARY: SUMMARY, Tier.WORST: WORST, Tier.SAMPLES: SAMPLES, Tier.TOKENS: TOKENS}

__all__ = ["SAMPLES", "SCHEMAS", "STORE_VERSION", "SUMMARY", "TOKENS", "VERSION_KEY", "WORST", "Tier"]
