"""What is wrong with log-probs is counted once, located, and kept out of every mean."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from logparity.probe.metrics.catalog import metrics_of
from logparity.probe.metrics.census import LOCATED, Census
from logparity.probe.snapshot.batch import Mismatch
from tests.support.captured import batch_of, measure


def row(key: str, rollout: list[float], train: list[float], mask: list[int] | None = None) -> dict[str, Any]:
    flags = np.asarray(mask if mask is not None else [1] * len(rollout), bool)
    return {"key": key, "rollout": np.float32(rollout), "train": np.float32(train), "mask": flags, "env": "a"}


@pytest.mark.parametrize(
    ("defect", "rollout", "train"),
    [
        ("nan", np.nan, -1.0),
        ("nan", -1.0, np.nan),
        ("inf", np.inf, -1.0),
        ("inf", -np.inf, -1.0),
        ("inf", -1.0, np.inf),
        ("zero_train_prob", -1.0, -np.inf),
        ("sentinel", -9999.0, -1.0),
        ("sentinel", -1e30, -1.0),
        ("sentinel", -1.0, -9999.0),
        ("positive", 0.5, -1.0),
        ("positive", -1.0, 0.001),
        ("zero_for_missing", 0.0, -4.0),
        ("zero_for_missing", -4.0, 0.0),
    ],
)
def test_a_defect_is_counted_located_and_left_out(defect: str, rollout: float, train: float) -> None:
    clean = row("a", [-0.5, -0.25, -1.5], [-0.5, -0.5, -1.25])
    bad = row("b", [-0.5, rollout, -0.5], [-0.5, train, -0.5], [1, 1, 0])
    unit = measure(batch_of([clean, bad]))
    assert unit.census.counts == {defect: 1}
    place = unit.census.places[defect][0]
    assert (place.key, place.position) == ("b", 1)
    assert float(place.value) in (pytest.approx(rollout, nan_ok=True), pytest.approx(train, nan_ok=True))
    without = metrics_of(measure(batch_of([clean, row("b", [-0.5], [-0.5])])))
    got = metrics_of(unit)
    assert got[f"census/{defect}"] == 1
    assert got["mismatch/excluded_tokens"] == 1
    assert got["mismatch/excluded_fraction"] == 1 / 5
    for key, value in without.items():
        if not key.startswith(("census", "mismatch/excluded")):
            assert got[key] == value, key


def test_under_the_mask_anything_may_stand() -> None:
    got = measure(batch_of([row("a", [-1, np.nan, -9999, 7], [-1, np.inf, -1, -1], [1, 0, 0, 0])], padding=3))
    assert got.census.counts == {}
    assert metrics_of(got)["mismatch/tokens"] == 1


def test_zeros_of_a_certain_token_are_no_defect() -> None:
    got = measure(batch_of([row("a", [0.0, -0.0, 0.0], [0.0, -0.2, -0.9])]))
    assert got.census.counts == {}


def test_everything_nan_gives_counts_and_no_means() -> None:
    got = metrics_of(measure(batch_of([row(f"k{i}", [np.nan] * 50, [np.nan] * 50) for i in range(5)])))
    assert got["census/nan"] == 250
    assert got["mismatch/excluded_fraction"] == 1
    assert "mismatch/k3" not in got
    assert all(np.isfinite(value) for value in got.values())


def test_places_are_the_first_by_key_and_position_whatever_the_order() -> None:
    rows = [row(f"k{i:02d}", [-1.0, np.nan], [-1.0, -1.0]) for i in range(30)]
    forward, backward = measure(batch_of(rows)), measure(batch_of(rows[15:][::-1]), batch_of(rows[:15]))
    assert [place.key for place in forward.census.places["nan"]] == [f"k{i:02d}" for i in range(LOCATED)]
    assert forward.census.to_json() == backward.census.to_json()
    stored = Census.from_json(json.loads(json.dumps(forward.census.to_json())))
    assert stored.to_json() == forward.census.to_json()


def test_the_bfloat16_grid_is_seen_on_either_side() -> None:
    fine = -np.random.default_rng(0).exponential(1, 100).astype(np.float32)
    coarse = (fine.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    got = metrics_of(measure(batch_of([row("a", coarse.tolist(), fine.tolist())])))
    assert got["census/rollout_on_bf16_grid"] == 1
    assert got["census/train_on_bf16_grid"] == 0


def test_rows_of_two_lengths_and_repeated_keys_are_left_out_and_named() -> None:
    batch = batch_of([row("a", [-1.0], [-1.5]), row("b", [-1.0], [-1.5])])
    mismatches = (
        Mismatch(4, "x", {"rollout_log_probs": 3, "old_log_probs": 4}),
        Mismatch(5, "y", {"rollout_log_probs": 3, "old_log_probs": 9}),
    )
    object.__setattr__(batch, "mismatches", mismatches)
    seen: set[str] = {"b"}
    unit = measure(batch.without_seen(seen))
    assert unit.census.counts == {"length_plus_one": 1, "length_mismatch": 1, "duplicate_key": 1}
    assert unit.census.places["length_plus_one"][0].key == "x"
    assert unit.census.places["duplicate_key"][0].key == "b"
    assert metrics_of(unit)["mismatch/tokens"] == 1
    assert seen == {"a", "b"}
