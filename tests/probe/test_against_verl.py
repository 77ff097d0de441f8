"""The metrics that verl has, too, against the real verl: equal where it is right, and each place where it is not.

Golden values: ``tests/probe/golden/make_golden.py``, with the versions they come from.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logparity.probe.metrics.catalog import METRICS, metrics_of
from tests.support.captured import batch_of, measure

GOLDEN = json.loads((Path(__file__).parent / "golden" / "rollout_corr.json").read_text(encoding="utf-8"))

SAME_NAME = tuple(metric.key for metric in METRICS if metric.key.startswith("rollout_corr/"))
OTHER_NAME = {
    "mismatch/ratio_mean": "rollout_is_mean",
    "mismatch/ratio_std": "rollout_is_std",
    "mismatch/ratio_min": "rollout_is_min",
    "mismatch/ratio_max": "rollout_is_max",
    "mismatch/ess": "rollout_is_eff_sample_size",
    "mismatch/icepop_masked": "rollout_is_oob_ratio",
    "mismatch/sequence_masked_tokens": "seq_mean_k1/0.5_2.0/rollout_rs_masked_fraction",
}
PER_SEQUENCE = (
    *("training_ppl", "training_log_ppl", "rollout_ppl", "rollout_log_ppl", "log_ppl_diff", "log_ppl_abs_diff"),
    *("ppl_ratio", "chi2_seq"),
)
EPSILON = 3e-8
"""verl adds 1e-8 to every denominator."""


def rows(case: str) -> list[dict[str, Any]]:
    inputs = {name: np.asarray(value, float) for name, value in GOLDEN["cases"][case]["inputs"].items()}
    sides = (inputs["rollout"].astype(np.float32), inputs["old"].astype(np.float32), inputs["mask"].astype(bool))
    return [
        {"key": f"r{i}", "rollout": r, "train": t, "mask": m, "env": "a"}
        for i, (r, t, m) in enumerate(zip(*sides, strict=True))
    ]


@cache
def ours(case: str) -> dict[str, float]:
    return metrics_of(measure(batch_of(rows(case))))


@cache
def verls(case: str) -> dict[str, float]:
    return {name: float(value) for name, value in GOLDEN["cases"][case]["verl"].items()}


def pairs(case: str) -> dict[str, tuple[float, float]]:
    """Ours and verl's, by our name."""
    names = {key: key.removeprefix("rollout_corr/") for key in SAME_NAME} | OTHER_NAME
    return {key: (ours(case)[key], verls(case)[name]) for key, name in names.items()}


def different(case: str) -> set[str]:
    return {key for key, (mine, theirs) in pairs(case).items() if mine != pytest.approx(theirs, rel=1e-6)}


def test_the_values_are_the_pinned_verls() -> None:
    assert GOLDEN["versions"]["verl"] == "0.9.1"
    assert len(SAME_NAME) == 13


@pytest.mark.parametrize("key", [*SAME_NAME, *OTHER_NAME])
def test_equal_where_verl_is_right(key: str) -> None:
    mine, theirs = pairs("sound")[key]
    assert mine == pytest.approx(theirs, rel=EPSILON)


def test_a_sequence_without_tokens_counts_as_perplexity_one_there() -> None:
    """Its mean is 0 over nothing: verl averages it in, everywhere where it averages over sequences."""
    mine, theirs = ours("empty row"), verls("empty row")
    full = sum(bool(row["mask"].any()) for row in rows("empty row"))
    total = len(rows("empty row"))
    assert (full, total) == (5, 6)
    of_nothing = {name: 1.0 if name in ("training_ppl", "rollout_ppl", "ppl_ratio") else 0.0 for name in PER_SEQUENCE}
    for name, value in of_nothing.items():
        there = (mine[f"rollout_corr/{name}"] * full + value * (total - full)) / total
        assert theirs[name] == pytest.approx(there, rel=EPSILON), name
    # The largest difference is that of the sequence that has none.
    assert theirs["log_ppl_diff_max"] == 0
    assert mine["rollout_corr/log_ppl_diff_max"] == pytest.approx(verls("sound")["log_ppl_diff_max"], rel=EPSILON)
    assert different("empty row") == {f"rollout_corr/{name}" for name in (*PER_SEQUENCE, "log_ppl_diff_max")}


def test_k3_is_clamped_here_as_verl_clamps_its_other_exponents() -> None:
    """One token with ``L = 30``: 10^13 there, and infinity in float32 from ``L = 89`` on."""
    assert different("ratio beyond e^20") == {"rollout_corr/k3_kl"}
    tokens = ours("ratio beyond e^20")["mismatch/tokens"]
    excess = (math.exp(30) - 31) - (math.exp(20) - 21)
    mine, theirs = pairs("ratio beyond e^20")["rollout_corr/k3_kl"]
    assert theirs == pytest.approx(mine + excess / tokens, rel=EPSILON)
    assert ours("ratio beyond e^20")["mismatch/clamped_tokens"] == 1


def test_perplexities_are_clamped_here() -> None:
    """A sequence at 40 nats a token outweighs all others by 10^16 there; its log-perplexity is the same on both."""
    assert different("perplexity beyond e^20") == {"rollout_corr/training_ppl", "rollout_corr/rollout_ppl"}
    count = ours("perplexity beyond e^20")["mismatch/sequences"]
    for name, nats in (("training_ppl", 40), ("rollout_ppl", 39)):
        mine, theirs = pairs("perplexity beyond e^20")[f"rollout_corr/{name}"]
        assert theirs == pytest.approx(mine + (math.exp(nats) - math.exp(20)) / count, rel=1e-6)


@pytest.mark.parametrize(("case", "defect"), [("a NaN", "nan"), ("probability 0", "zero_train_prob")])
def test_one_defect_takes_verls_means_with_it_and_is_left_out_here(case: str, defect: str) -> None:
    assert not math.isfinite(verls(case)["kl"])
    assert not math.isfinite(verls(case)["k3_kl"])
    assert not math.isfinite(verls(case)["log_ppl_diff"])
    assert all(math.isfinite(value) for value in ours(case).values())
    assert ours(case)[f"census/{defect}"] == 1
    without = rows(case)
    without[4]["mask"][4] = False
    truth = metrics_of(measure(batch_of(without)))
    for key in (*SAME_NAME, *OTHER_NAME):
        assert ours(case)[key] == truth[key], key


def test_verls_rejection_bounds_are_those_of_the_inverse_ratio() -> None:
    """The same bounds on the same ratio: verl's weights and verl's rejection disagree, ours are the weights'."""
    found = verls("sound")
    assert ours("sound")["mismatch/icepop_masked"] == pytest.approx(found["rollout_is_oob_ratio"], rel=EPSILON)
    assert found["token_k1/0.5_5.0/rollout_rs_masked_fraction"] > 5 * found["rollout_is_oob_ratio"]
    # [0.5, 5] of the ratio is [1/5, 1/0.5] of its inverse.
    assert found["token_k1/0.2_2.0/rollout_rs_masked_fraction"] == pytest.approx(
        found["rollout_is_oob_ratio"], rel=EPSILON
    )
