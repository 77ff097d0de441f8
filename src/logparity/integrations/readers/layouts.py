"""Four ways to lay out the log-probs of a batch, and where each entry's token is.

A padded matrix ``[B, R]``; a list of sequences; one packed sequence with its boundaries; and, in each of these, whole
sequences of prompt and response, whose first token has no log-prob. Entry ``t`` of a whole sequence belongs to token
``t`` where it starts with a filler 0, and to token ``t + 1`` where the filler comes last or is missing. Which was
assumed is noted, always.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.integrations.readers.columns import Rows, as_bools, as_floats, as_ids, is_nested, numbers, rows_of
from logparity.integrations.readers.dump import TokenDump
from logparity.layout.shift import response_rows


class Layout(str, Enum):
    """How a file lays out its sequences."""

    PADDED = "padded"
    LIST = "list"
    PACKED = "packed"
    SINGLE = "single"


def dump_of(columns: Mapping[str, Any], *, source: str, step: int | None = None, notes: list[str]) -> TokenDump:
    """Bring a file's columns, under our names, to one array per response.

    Args:
        columns: ``rollout_log_probs`` and ``old_log_probs``, and what else there is of ``response_mask``,
            ``tool_mask``, ``token_ids``, ``lengths``, ``boundaries``, ``keys``.
        source: the file, for messages.
        step: training step.
        notes: what was noted so far.

    Returns:
        The dump, with what was assumed among its notes.

    Raises:
        InputError: a column holds no numbers, or lengths do not fit each other; says which layout was assumed.
    """
    notes = list(notes)
    cuts = _cuts(columns)
    split = {name: _split(columns[name], name, cuts) for name in _ROW_COLUMNS if columns.get(name) is not None}
    layout = split["rollout_log_probs"][1]
    notes.append(f"layout: {layout.value}, {len(split['rollout_log_probs'][0])} sequences")
    rows = {name: value for name, (value, _) in split.items()}
    _check_counts(rows, layout, source)
    lengths = None if columns.get("lengths") is None else as_ids(numbers(columns["lengths"], "lengths"), "lengths")
    try:
        parts = [_Sequence(rows, index, lengths, notes).aligned() for index in range(len(rows["rollout_log_probs"]))]
    except InputError as error:
        raise InputError(f"{source} (layout assumed: {layout.value}): {error}") from error
    has_ids = bool(parts) and all(part[3] is not None for part in parts)
    return TokenDump(
        step=step,
        rollout_log_probs=tuple(part[0] for part in parts),
        old_log_probs=tuple(part[1] for part in parts),
        response_mask=tuple(part[2] for part in parts),
        token_ids=tuple(part[3] for part in parts if part[3] is not None) if has_ids else None,
        keys=_keys(columns.get("keys"), len(parts)),
        notes=tuple(dict.fromkeys(notes)),
    )


_ROW_COLUMNS = ("rollout_log_probs", "old_log_probs", "response_mask", "tool_mask", "token_ids")
_Aligned = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.int64] | None]


class _Sequence:
    """One sequence's columns, each maybe of another span: the response, or prompt and response."""

    def __init__(self, rows: Mapping[str, Rows], index: int, lengths: NDArray[np.int64] | None, notes: list[str]):
        self.index, self.notes = index, notes
        self.rollout, self.old = (as_floats(rows[name][index]) for name in ("rollout_log_probs", "old_log_probs"))
        self.mask = self._mask(rows)
        self.ids = as_ids(rows["token_ids"][index], "token_ids") if "token_ids" in rows else None
        self.length = self._response_length(lengths)

    def aligned(self) -> _Aligned:
        total = None if self.ids is None else len(self.ids)
        rollout = self._response_part(self.rollout, total, "rollout_log_probs")
        old = self._response_part(self.old, total, "old_log_probs")
        mask = self._mask_part()
        ids = self.ids
        if ids is not None:
            ids = ids[len(ids) - self.length :] if len(ids) >= self.length else None
        return rollout, old, mask, ids

    def _mask(self, rows: Mapping[str, Rows]) -> NDArray[np.bool_] | None:
        if "response_mask" not in rows:
            self.notes.append("no mask: every entry counts")
            return None
        mask = as_bools(rows["response_mask"][self.index], "response_mask")
        if "tool_mask" in rows:
            tool = as_bools(rows["tool_mask"][self.index], "tool_mask")
            if tool.shape != mask.shape:
                raise InputError(f"tool_mask[{self.index}]: expected length {len(mask)}, got {len(tool)}.")
            mask = mask & tool
        return mask

    def _response_length(self, lengths: NDArray[np.int64] | None) -> int:
        """The span that both sides can give: the shortest of what is known."""
        spans = [len(self.rollout), len(self.old)]
        if lengths is not None and (self.mask is None or len(self.mask) not in spans):
            if self.index >= len(lengths) or not 0 <= lengths[self.index] <= min(spans):
                raise InputError(f"lengths[{self.index}]: expected a length of at most {min(spans)}, got others.")
            return int(lengths[self.index])
        if self.mask is not None:
            spans.append(len(self.mask))
        return min(spans)

    def _response_part(self, values: NDArray[np.float32], total: int | None, name: str) -> NDArray[np.float32]:
        extra = len(values) - self.length
        if extra == 0:
            self._note_whole(values, name)
            return values
        whole = total if total is not None and total > self.length else None
        leading = values.size > 0 and values[0] == 0
        if leading and (len(values) == whole if whole is not None else extra > 1):
            self.notes.append(f"{name}: whole sequences with a leading 0, entry t is taken for token t (no shift)")
            return values[extra:]
        if whole is not None and len(values) in (whole, whole - 1):
            self.notes.append(
                f"{name}: whole sequences without a leading 0, entry t is taken for token t + 1 (shift of one)"
            )
            first = response_rows(whole - self.length, self.length).start
            return values[first : first + self.length]
        hint = " One value more: the engine reported the prompt's last position or the end token too; drop it."
        raise InputError(
            f"{name}[{self.index}]: expected {self.length} values, one per response token, or whole sequences with a "
            f"leading 0, got {len(values)}.{hint if extra == 1 else ''}"
        )

    def _note_whole(self, values: NDArray[np.float32], name: str) -> None:
        same = self.mask is not None and len(values) > 0 and len(self.mask) == len(values)
        if same and self.mask is not None and not self.mask[0] and values[0] == 0:
            self.notes.append(f"{name}: whole sequences with a leading 0, entry t is taken for token t (no shift)")

    def _mask_part(self) -> NDArray[np.bool_]:
        if self.mask is None:
            return np.ones(self.length, np.bool_)
        extra = len(self.mask) - self.length
        if extra > 0:
            self.notes.append("response_mask: wider than the log-probs, its last columns are taken")
        return self.mask[extra:]


def _cuts(columns: Mapping[str, Any]) -> NDArray[np.int64] | None:
    if columns.get("boundaries") is not None:
        cuts = as_ids(numbers(columns["boundaries"], "boundaries"), "boundaries")
        if len(cuts) < 2 or cuts[0] != 0 or (np.diff(cuts) < 0).any():
            raise InputError(f"boundaries: expected 0 first and then ascending ends, got {cuts[:8].tolist()}.")
        return cuts
    if columns.get("lengths") is not None and not is_nested(columns["rollout_log_probs"]):
        lengths = as_ids(numbers(columns["lengths"], "lengths"), "lengths")
        if (lengths < 0).any():
            raise InputError("lengths: expected numbers >= 0, got negative ones.")
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return None


def _split(value: Any, name: str, cuts: NDArray[np.int64] | None) -> tuple[Rows, Layout]:
    if is_nested(value):
        return rows_of(value, name), Layout.PADDED if isinstance(value, np.ndarray) else Layout.LIST
    flat = numbers(value, name)
    if cuts is None:
        return [flat], Layout.SINGLE
    if cuts[-1] != len(flat):
        raise InputError(f"{name}: expected {cuts[-1]} values, where the boundaries end, got {len(flat)}.")
    return np.split(flat, cuts[1:-1]), Layout.PACKED


def _check_counts(rows: Mapping[str, Rows], layout: Layout, source: str) -> None:
    counts = {name: len(value) for name, value in rows.items()}
    if len(set(counts.values())) > 1:
        raise InputError(
            f"{source} (layout assumed: {layout.value}): expected as many sequences in each, got {counts}."
        )


def _keys(value: Any, count: int) -> tuple[str, ...] | None:
    if value is None or isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or len(value) != count:
        return None
    return tuple(str(key) for key in value)


__all__ = ["Layout", "dump_of"]
