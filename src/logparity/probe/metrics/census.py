"""What is wrong with log-probs before any comparison: counted, located, and left out of every mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from logparity.records import BoolArray, FloatArray, IntArray

LOWEST: Final = -1000.0
"""Real logits do not give a log-prob of -1000 nats; placeholders (-9999, -1e30) do."""
ROUNDING: Final = 1e-4
"""A log-prob up to this far above 0 is 0 with rounding of the log-sum-exp; beyond it is no log-prob."""
ZERO_GAP: Final = 1.0
"""An exact 0 on one side, more than this many nats below on the other: 0 stands for "missing"."""
LOCATED: Final = 8
"""Places that are kept per defect."""


class Defect(str, Enum):
    """Kinds of bad values, in the order in which they are looked for; a token counts once."""

    NONE = "none"
    NAN = "nan"
    INF = "inf"
    """+inf on either side, or -inf in the rollout: what was sampled cannot have had probability 0."""
    ZERO_PROB = "zero_train_prob"
    """-inf in the trainer: it says that what was sampled cannot happen (another top-k or top-p, another model)."""
    SENTINEL = "sentinel"
    POSITIVE = "positive"
    ZERO_FOR_MISSING = "zero_for_missing"


ROW_DEFECTS: Final = ("length_mismatch", "length_plus_one", "duplicate_key")
"""Rows left out: arrays of different lengths, of lengths that differ by one, a key that came before in the unit."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a defect is.

    Args:
        key: of the sample.
        position: slot in its response; -1 for the whole row.
        side: ``rollout``, ``train``, or what the row lacks.
        value: as text: NaN and inf are no JSON.
    """

    key: str
    position: int
    side: str
    value: str


class Census:
    """Counts and first places of every defect, and what the log-probs have in common.

    Args:
        counts: defect to number of tokens (or rows).
        places: defect to its first `LOCATED` places by key and position.
        low_bits: low 16 bits that any log-prob had set, by side: none means that all lie on the bfloat16 grid.
    """

    __slots__ = ("counts", "low_bits", "places")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.places: dict[str, list[Place]] = {}
        self.low_bits: dict[str, int] = {"rollout": 0, "train": 0}

    def record(self, defect: str, places: Iterable[Place], count: int) -> None:
        """Count a defect and keep its first places."""
        self.counts[defect] = self.counts.get(defect, 0) + count
        kept = {*self.places.get(defect, ()), *places}
        self.places[defect] = sorted(kept)[:LOCATED]

    def merge(self, other: Census) -> None:
        """Add what another part of the unit found."""
        for defect, count in other.counts.items():
            self.record(defect, other.places.get(defect, ()), count)
        for side, bits in other.low_bits.items():
            self.low_bits[side] |= bits

    @property
    def excluded(self) -> int:
        """Tokens left out of every mean; the tokens of left-out rows are not among them."""
        return sum(count for defect, count in self.counts.items() if defect not in ROW_DEFECTS)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        places = {
            defect: [[p.key, p.position, p.side, p.value] for p in found] for defect, found in self.places.items()
        }
        return {"counts": self.counts, "places": places, "low_bits": self.low_bits}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Census:
        """The census whose `to_json` this is."""
        census = cls()
        census.counts = {str(k): int(v) for k, v in data["counts"].items()}
        census.places = {str(k): [Place(*place) for place in v] for k, v in data["places"].items()}
        census.low_bits = {str(k): int(v) for k, v in data["low_bits"].items()}
        return census


@dataclass(frozen=True, slots=True)
class Ends:
    """Smallest and largest log-prob of a block, on either side; NaN where one is NaN."""

    rollout: tuple[float, float]
    train: tuple[float, float]

    @classmethod
    def of(cls, rollout: FloatArray, train: FloatArray) -> Ends:
        """Of a block that is not empty."""
        return cls((float(rollout.min()), float(rollout.max())), (float(train.min()), float(train.max())))


def looks_clean(rollout: FloatArray, train: FloatArray, ends: Ends) -> bool:
    """Whether no token of a block can have a defect; cheap, so that clean blocks cost nothing.

    Args:
        rollout: float32 ``[n]``, ``n >= 1``.
        train: float32 ``[n]``.
        ends: of the two.

    Returns:
        False also where only a closer look can tell.
    """
    # A comparison with NaN is False, so these two tests hold NaN, inf, sentinels, and positive values off.
    for low, high in (ends.rollout, ends.train):
        if not (low > LOWEST and high <= ROUNDING):
            return False
    for (_, high), values, other in ((ends.rollout, rollout, train), (ends.train, train, rollout)):
        # Exact zeros are common in greedy or bfloat16 data; the gap is what makes them suspicious.
        if high >= 0 and bool(((values == 0) & (other < -ZERO_GAP)).any()):
            return False
    return True


def classify(rollout: FloatArray, train: FloatArray, missing: BoolArray | None) -> dict[Defect, dict[str, BoolArray]]:
    """Find every defect of a block.

    Args:
        rollout: float32 ``[n]``.
        train: float32 ``[n]``.
        missing: bool ``[n]``; None where no entry was None.

    Returns:
        Defect to side to bool ``[n]``; a token is in at most one of them.
    """
    left = np.ones(len(rollout), np.bool_)
    found: dict[Defect, dict[str, BoolArray]] = {}
    sides = {"rollout": rollout, "train": train}
    with np.errstate(invalid="ignore"):
        for defect in Defect:
            for side, values in sides.items():
                hit = left & _test(defect, side, values, train if side == "rollout" else rollout, missing)
                if hit.any():
                    found.setdefault(defect, {})[side] = hit
                    left &= ~hit
    return found


def places_of(
    hit: BoolArray, side: str, values: FloatArray, slots: IntArray, rows: IntArray, keys: tuple[str, ...]
) -> list[Place]:
    """The first places of a defect in a block.

    Args:
        hit: bool ``[n]``.
        side: which log-probs ``values`` are.
        values: float32 ``[n]``.
        slots: int64 ``[n]``, position in the response.
        rows: int64 ``[n]``, row in the call.
        keys: of the rows.

    Returns:
        Those that can be among the first `LOCATED` by key and position.
    """
    where = np.flatnonzero(hit)
    if len(where) > LOCATED:  # of each row the first few suffice
        order: list[int] = []
        taken: dict[int, int] = {}
        for index in where.tolist():
            row = int(rows[index])
            if taken.setdefault(row, 0) < LOCATED:
                taken[row] += 1
                order.append(index)
        where = np.asarray(order)
    return [Place(keys[int(rows[i])], int(slots[i]), side, str(values[i])) for i in where]


def _test(defect: Defect, side: str, values: FloatArray, other: FloatArray, missing: BoolArray | None) -> BoolArray:
    nothing = np.zeros(len(values), np.bool_)
    tests: dict[Defect, BoolArray] = {
        Defect.NONE: nothing if missing is None or side == "train" else missing,
        Defect.NAN: np.isnan(values),
        Defect.INF: np.isposinf(values) | (np.isneginf(values) if side == "rollout" else nothing),
        Defect.ZERO_PROB: np.isneginf(values) if side == "train" else nothing,
        Defect.SENTINEL: values <= LOWEST,
        Defect.POSITIVE: values > ROUNDING,
        Defect.ZERO_FOR_MISSING: (values == 0) & (other < -ZERO_GAP),
    }
    return tests[defect]


__all__ = [
    "LOCATED",
    "LOWEST",
    "ROUNDING",
    "ROW_DEFECTS",
    "ZERO_GAP",
    "Census",
    "Defect",
    "Ends",
    "Place",
    "classify",
    "looks_clean",
    "places_of",
]
