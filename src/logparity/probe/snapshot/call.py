"""One call of the probe: captured at once, assembled into rows later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from logparity.errors import InputError
from logparity.probe.snapshot.batch import CapturedBatch, Mismatch
from logparity.probe.snapshot.buffers import BufferPool, Lease
from logparity.probe.snapshot.capture import Kind, Reader, capture
from logparity.probe.snapshot.ragged import Ragged, as_ragged
from logparity.records import BoolArray, IntArray

_LONGEST_NAME = 256
_PER_TOKEN = {
    "rollout_log_probs": Kind.FLOAT,
    "old_log_probs": Kind.FLOAT,
    "response_mask": Kind.MASK,
    "token_ids": Kind.ID,
    "entropy": Kind.FLOAT,
}


@dataclass(frozen=True, slots=True)
class Call:
    """What one call was given, copied.

    Args:
        step: training step.
        sub_step: within it.
        tokens: per-token argument to its copy.
        keys: of the samples.
        versions: copy of the weight versions.
        train_version: of the weights that scored.
        groups: group key to labels.
        lengths: copy of the lengths of packed rows.
        lease: the memory of all copies; released when nobody reads them any more.
    """

    step: int
    sub_step: int
    tokens: Mapping[str, Reader]
    keys: tuple[str, ...] | None
    versions: Reader | None
    train_version: int | None
    groups: Mapping[str, tuple[str, ...]]
    lengths: Reader | None
    lease: Lease

    @classmethod
    def capture(
        cls,
        step: int,
        sub_step: int,
        tokens: Mapping[str, Any],
        keys: Sequence[object] | None,
        versions: Any,
        train_version: int | None,
        groups: Mapping[str, Sequence[object]] | None,
        lengths: Any,
        pool: BufferPool,
    ) -> Call:
        """Copy the arguments of a call; the only part that the trainer waits for."""
        lease = Lease(pool)
        return cls(
            int(step),
            int(sub_step),
            {
                name: capture(value, name, lease, _PER_TOKEN[name])
                for name, value in tokens.items()
                if value is not None
            },
            None if keys is None else tuple(map(_name, keys)),
            None if versions is None else capture(versions, "versions", lease, Kind.ID),
            None if train_version is None else int(train_version),
            {_name(group): tuple(map(_name, labels)) for group, labels in (groups or {}).items()},
            None if lengths is None else capture(lengths, "lengths", lease, Kind.ID),
            lease,
        )

    def assemble(self, labels: Mapping[str, str]) -> CapturedBatch:
        """Bring the copies into rows.

        Args:
            labels: group keys that all rows have in common.

        Returns:
            The rows; those whose arrays differ in length are left out and listed.

        Raises:
            InputError: the arguments do not belong together; says which layout was assumed.
        """
        lengths = None if self.lengths is None else np.asarray(self.lengths(), np.int64)
        parts = self._ragged(lengths)
        rollout = parts["rollout_log_probs"]
        size = len(rollout.lengths)
        keys = self.keys if self.keys is not None else tuple(f"row{row}" for row in range(size))
        for name, got in (("keys", len(keys)), *((f"groups[{g!r}]", len(v)) for g, v in self.groups.items())):
            if got != size:
                raise InputError(f"{name}: expected {size} entries, one per row ({rollout.layout}), got {got}.")
        keep, mismatches = _aligned(parts, keys)
        if mismatches:
            parts = {name: part.select(keep) for name, part in parts.items()}
        rows = np.flatnonzero(keep)
        rollout, train = parts["rollout_log_probs"], parts["old_log_probs"]
        ids, entropy = parts.get("token_ids"), parts.get("entropy")
        groups = {name: tuple(values[row] for row in rows) for name, values in self.groups.items()}
        return CapturedBatch(
            rollout=_float32(rollout),
            train=_float32(train),
            mask=_mask(parts.get("response_mask"), rollout),
            lengths=rollout.lengths,
            keys=tuple(keys[row] for row in rows) if mismatches else keys,
            layout=rollout.layout,
            token_ids=None if ids is None else ids.values.astype(np.int32),
            entropy=None if entropy is None else _float32(entropy),
            lag=self._lag(lengths, keep, rollout),
            groups={**{name: (label,) * len(rows) for name, label in labels.items()}, **groups},
            missing=_either(rollout.missing, train.missing),
            mismatches=mismatches,
            keyed=self.keys is not None,
        )

    def _ragged(self, lengths: IntArray | None) -> dict[str, Ragged]:
        data = {name: self.tokens[name]() for name in _PER_TOKEN if name in self.tokens}
        base = data["rollout_log_probs"]
        width = None if isinstance(base, list) or base.ndim != 2 else base.shape[1]
        parts = {
            name: as_ragged(values, lengths, name, width if name == "response_mask" else None)
            for name, values in data.items()
        }
        rollout = parts["rollout_log_probs"]
        if width is not None and "response_mask" not in parts:
            raise InputError("response_mask: a padded [B, R] batch needs one; it says which slots are tokens.")
        for name, part in parts.items():
            if len(part.lengths) != len(rollout.lengths) or (
                width is not None and not np.array_equal(part.lengths, rollout.lengths)
            ):
                given = data[name]
                shape = f"{len(part.lengths)} rows" if isinstance(given, list) else f"shape {given.shape}"
                raise InputError(
                    f"{name}: expected {_shape(rollout, width)} as rollout_log_probs ({rollout.layout}), got {shape}. "
                    "Give the response tokens only, in one layout."
                )
        known = parts["old_log_probs"]
        return {
            name: part.with_absent(known.lengths if name == "rollout_log_probs" else rollout.lengths)
            for name, part in parts.items()
        }

    def _lag(self, lengths: IntArray | None, keep: BoolArray, rollout: Ragged) -> IntArray | None:
        if self.versions is None or self.train_version is None:
            return None
        versions = self.versions()
        if not isinstance(versions, list) and versions.ndim == 1 and len(versions) == len(keep):
            return self.train_version - versions[keep].astype(np.int64)
        per_token = as_ragged(versions, lengths, "versions").select(keep)
        if not np.array_equal(per_token.lengths, rollout.lengths):
            raise InputError(
                f"versions: expected [{len(keep)}] or one per token ({rollout.layout}), got other lengths."
            )
        return self.train_version - per_token.values.astype(np.int64)


def _name(value: object) -> str:
    """The ``str`` of a key or label, as far as a file can hold it: valid UTF-8, and not longer than a name is."""
    text = str(value).encode("utf-8", errors="replace").decode("utf-8")
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[: _LONGEST_NAME - 17]}~{blake2b(text.encode(), digest_size=8).hexdigest()}"


def _aligned(parts: Mapping[str, Ragged], keys: tuple[str, ...]) -> tuple[BoolArray, tuple[Mismatch, ...]]:
    table = np.stack([part.lengths for part in parts.values()])
    keep = (table == table[0]).all(axis=0)
    wrong = np.flatnonzero(~keep).tolist()
    found = (Mismatch(row, keys[row], {name: int(part.lengths[row]) for name, part in parts.items()}) for row in wrong)
    return keep, tuple(found)


def _shape(rollout: Ragged, width: int | None) -> str:
    return f"{len(rollout.lengths)} rows" if width is None else f"shape ({len(rollout.lengths)}, {width})"


def _float32(part: Ragged) -> Any:
    with np.errstate(over="ignore"):  # a float64 placeholder such as -1e300 becomes -inf and is counted as such
        return part.values.astype(np.float32, copy=False)


def _mask(part: Ragged | None, rollout: Ragged) -> BoolArray:
    if part is None:
        return np.ones(len(rollout.values), np.bool_)
    mask: BoolArray = part.values if part.values.dtype == np.bool_ else part.values != 0
    return mask


def _either(a: BoolArray | None, b: BoolArray | None) -> BoolArray | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


__all__ = ["Call"]
