"""The metrics core against plain float64, and the law that no split, order, or merge changes a bit of it."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logparity.probe.metrics import walk
from logparity.probe.metrics.bins import LAGS, POSITION_EDGES, PROBABILITY_EDGES
from logparity.probe.metrics.catalog import METRICS, markdown_table, metrics_of
from logparity.probe.metrics.exact_sums import MAX_BLOCK, ExactSums
from logparity.probe.metrics.unit import UnitMetrics
from tests.support.captured import batch_of, measure, ragged_rows, usable
from tests.support.mismatch_truth import mismatch_truth
from tests.support.rollouts import PAIRS

REPO = Path(__file__).parents[2]


def check(unit: UnitMetrics, rows: list[tuple[np.ndarray, np.ndarray]]) -> None:
    got, truth = metrics_of(unit), mismatch_truth(rows)
    for key, value in truth.items():
        # A mean may cancel: it is held to 1e-9 of the mean of absolute terms, which |L| and 1 bound from below.
        scale = max(abs(value), truth["mismatch/log_ratio_abs_mean"] if "log_ratio_mean" in key or "k1" in key else 0)
        assert got[key] == pytest.approx(value, rel=1e-9, abs=1e-9 * scale), key
    diff = np.concatenate([np.abs(np.exp(t.astype(float)) - np.exp(r.astype(float))) for r, t in rows])
    size = np.concatenate([np.abs(t.astype(float) - r.astype(float)) for r, t in rows])
    for name, values in (("prob_diff", diff), ("log_ratio_abs", size)):
        for label, q in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            ordered = np.sort(values)
            exact = ordered[int(q * (len(ordered) - 1) + 0.5)]
            assert got[f"mismatch/{name}_{label}"] == pytest.approx(exact, rel=0.01, abs=2.0**-48)


@pytest.mark.parametrize("dump", sorted(PAIRS.glob("*.npz")), ids=lambda path: path.stem)
def test_every_engine_dump_gives_what_plain_float64_gives(dump: Path) -> None:
    data = np.load(dump, allow_pickle=False)
    mask = data["response_mask"].astype(bool)
    rows = [
        {"key": f"r{i}", "rollout": r, "train": t, "mask": m, "env": "a"}
        for i, (r, t, m) in enumerate(zip(data["rollout_log_probs"], data["old_log_probs"], mask, strict=True))
    ]
    unit = measure(batch_of(rows))
    bad = unit.census.excluded
    if bad:  # the same tokens have to be left out of the truth
        for row in rows:
            low, high = np.minimum(row["rollout"], row["train"]), np.maximum(row["rollout"], row["train"])
            row["mask"] = row["mask"] & ~((high == 0) & (low < -1)) & (low > -1000) & (high <= 1e-4)
    assert sum(int(row["mask"].sum()) for row in rows) == mask.sum() - bad
    check(unit, usable(rows))


@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-3, 0.5, 8.0, 60.0])
def test_ragged_rows_longer_than_a_block_give_what_plain_float64_gives(noise: float) -> None:
    rows = ragged_rows(1, 5, 3 * MAX_BLOCK // 2, noise)
    rows += ragged_rows(2, 40, 129, noise)
    check(measure(batch_of(rows[:20]), batch_of(rows[20:], padding=7)), usable(rows))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    parts=st.integers(1, 6),
    padding=st.integers(0, 9),
    noise=st.sampled_from([1e-6, 0.05, 9]),
)
def test_no_split_order_or_padding_changes_a_bit(seed: int, parts: int, padding: int, noise: float) -> None:
    rows = ragged_rows(seed, 23, 70, noise)
    whole = measure(batch_of(rows))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    pieces = [[rows[i] for i in piece] for piece in np.array_split(order, parts)]
    calls = measure(*(batch_of(piece, padding) for piece in pieces))
    ranks = UnitMetrics()
    for piece in reversed(pieces):
        ranks.merge(UnitMetrics.from_json(json.loads(json.dumps(measure(batch_of(piece)).to_json()))))
    for other in (calls, ranks):
        assert metrics_of(other) == metrics_of(whole)
        assert other.group_rows() == whole.group_rows()
        assert other.sequences.worst == whole.sequences.worst
        assert other.tokens.to_json() == whole.tokens.to_json()


def test_the_size_of_a_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ragged_rows(3, 9, 400)
    whole = measure(batch_of(rows))
    monkeypatch.setattr(walk, "MAX_BLOCK", 37)
    small = measure(batch_of(rows))
    assert metrics_of(small) == metrics_of(whole)
    assert small.group_rows() == whole.group_rows()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-(2.0**57), 2.0**57, width=64), min_size=1, max_size=60))
def test_sums_are_exact_to_the_grid(values: list[float]) -> None:
    sums = ExactSums([0])
    sums.add_block(np.asarray([values]))
    exact = sum(map(Fraction, values))
    assert abs(Fraction(sums.units[0], 1 << 79) - exact) <= len(values) * Fraction(1, 1 << 80) + abs(exact) / 2**52


def test_groups_are_the_means_over_their_tokens() -> None:
    rows = ragged_rows(5, 31, 200)
    for index, row in enumerate(rows):
        row["lag"] = index % (LAGS + 3) - 1
    batch = batch_of(rows, padding=3)
    object.__setattr__(batch, "lag", np.asarray([row["lag"] for row in rows]))
    got = measure(batch).group_rows()
    truth: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        last = int(np.flatnonzero(row["mask"])[-1]) if row["mask"].any() else 0
        turn, before = -1, False
        for position, used in enumerate(row["mask"]):
            turn += bool(used and not before)
            before = used
            if not used:
                continue
            r, t = float(row["rollout"][position]), float(row["train"][position])
            labels = {
                "position": str(max(e for e in POSITION_EDGES if e <= position)),
                "distance_to_end": str(max(e for e in POSITION_EDGES if e <= last - position)),
                "probability": f"{max(e for e in PROBABILITY_EDGES if e <= np.float32(math.exp(r))):.6g}",
                "turn": str(turn) if turn < 15 else "15+",
                "version_lag": "negative" if row["lag"] < 0 else str(row["lag"]) if row["lag"] < 15 else "15+",
                "env": row["env"],
            }
            for group, label in labels.items():
                truth.setdefault(group, {}).setdefault(label, []).append((t - r, abs(math.exp(t) - math.exp(r))))
    assert got.keys() == truth.keys()
    for group, rows_of_group in got.items():
        assert {row["label"] for row in rows_of_group} == truth[group].keys(), group
        for row in rows_of_group:
            values = np.asarray(truth[group][row["label"]])
            assert row["count"] == len(values)
            assert row["log_ratio"] == pytest.approx(math.fsum(values[:, 0]) / len(values), rel=1e-9, abs=1e-12)
            assert row["log_ratio_abs"] == pytest.approx(np.abs(values[:, 0]).mean(), rel=1e-9)
            assert row["prob_diff"] == pytest.approx(values[:, 1].mean(), rel=1e-9)


def test_labels_beyond_the_limit_are_counted_together() -> None:
    rows = ragged_rows(6, 12, 20)
    for index, row in enumerate(rows):
        row["env"] = f"env{index:02d}"
        row["mask"][:] = True
    unit = UnitMetrics(group_limit=4)
    from tests.support.captured import WALKER

    WALKER.add(unit, batch_of(rows))
    labels = {row["label"]: row["count"] for row in unit.group_rows()["env"]}
    assert len(labels) == 5
    assert sum(labels.values()) == sum(len(row["mask"]) for row in rows)
    assert labels["other"] == sum(len(row["mask"]) for row in rows[4:])


def test_nothing_at_all_is_no_error() -> None:
    got = metrics_of(measure(batch_of([])))
    assert got["mismatch/tokens"] == 0
    assert "mismatch/k3" not in got


def test_what_is_undefined_is_left_out() -> None:
    one = {"key": "a", "rollout": np.float32([-1]), "train": np.float32([-1]), "mask": np.ones(1, bool), "env": "a"}
    got = metrics_of(measure(batch_of([one])))
    assert got["mismatch/prob_diff_mean"] == 0
    assert "mismatch/prob_diff_std" not in got
    assert "mismatch/prob_pearson" not in got


def test_a_row_without_tokens_has_no_perplexity() -> None:
    row = {
        "key": "a",
        "rollout": np.float32([-3, -3]),
        "train": np.float32([-3, -3]),
        "mask": np.ones(2, bool),
        "env": "a",
    }
    empty = {**row, "key": "b", "mask": np.zeros(2, bool)}
    # verl counts the empty row as perplexity 1, which halves the distance from 1.
    assert metrics_of(measure(batch_of([row, empty])))["rollout_corr/rollout_ppl"] == pytest.approx(math.exp(3))


def test_the_documented_table_is_the_one_in_the_code() -> None:
    text = (REPO / "docs" / "probe.md").read_text(encoding="utf-8")
    assert markdown_table() in text
    assert len({metric.key for metric in METRICS}) == len(METRICS)
