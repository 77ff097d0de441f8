"""Log-space metrics against their definitions in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from logparity.probe import TokenPairs
from logparity.probe.log_metrics import log_space_metrics

DUMPS = sorted((Path(__file__).parents[1] / "data" / "pairs").glob("*.npz"))


def pairs_of(rollout: object, old: object, mask: object = None) -> TokenPairs:
    rollout, old = np.asarray(rollout, np.float32), np.asarray(old, np.float32)
    return TokenPairs(rollout, old, np.ones(rollout.shape, bool) if mask is None else np.asarray(mask, bool))


@pytest.mark.parametrize("path", DUMPS, ids=lambda p: p.stem)
def test_metrics_of_every_dump_equal_their_definitions(path: Path) -> None:
    dump = np.load(path, allow_pickle=False)
    rollout, old, mask = dump["rollout_log_probs"], dump["old_log_probs"], dump["response_mask"].astype(bool)
    got = log_space_metrics(TokenPairs(rollout, old, mask))
    use = mask & np.isfinite(old) & np.isfinite(rollout)
    log_ratio = old[use].astype(np.float64) - rollout[use].astype(np.float64)
    weight = np.exp(log_ratio)
    per_sequence = np.where(use, np.where(use, old, 0) - np.where(use, rollout, 0).astype(np.float64), 0).sum(axis=1)
    expected = {
        "mismatch/tokens": use.sum(),
        "mismatch/excluded_tokens": mask.sum() - use.sum(),
        "mismatch/zero_train_prob_tokens": (mask & np.isneginf(old)).sum(),
        "mismatch/log_ratio_mean": log_ratio.mean(),
        "mismatch/log_ratio_abs_mean": np.abs(log_ratio).mean(),
        "mismatch/log_ratio_abs_p99": np.percentile(np.abs(log_ratio), 99),
        "mismatch/log_ratio_abs_max": np.abs(log_ratio).max(),
        "mismatch/k1": (-log_ratio).mean(),
        "mismatch/k2": (log_ratio**2).mean() / 2,
        "mismatch/k3": (weight - log_ratio - 1).mean(),
        "mismatch/clamped_tokens": 0,
        "mismatch/ratio_mean": weight.mean(),
        "mismatch/ess": 1 / ((weight / weight.mean()) ** 2).mean(),
        "mismatch/chi2_token": (weight**2).mean() - 1,
        "mismatch/multiplicative_error": np.exp(np.abs(log_ratio)).mean(),
        "mismatch/ratio_outside_half_to_two": ((weight < 0.5) | (weight > 2)).mean(),
        "mismatch/perplexity_rollout": np.exp(-rollout[use].astype(np.float64).mean()),
        "mismatch/perplexity_train": np.exp(-old[use].astype(np.float64).mean()),
        "mismatch/perplexity_ratio": np.exp(-log_ratio.mean()),
        "mismatch/confident_disagreement_tokens": ((rollout[use] >= np.log(0.5)) & (log_ratio < -2)).sum(),
        "mismatch/sequence_log_ratio_abs_max": np.abs(per_sequence).max(),
    }
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_tail_shows_in_log_space_what_probability_hides() -> None:
    same_gap = [(0.9, 0.899), (0.0011, 0.0001)]
    loud, quiet = (log_space_metrics(pairs_of([[np.log(a)]], [[np.log(b)]])) for a, b in reversed(same_gap))
    assert quiet["mismatch/log_ratio_abs_max"] == pytest.approx(0.0011, abs=1e-4)
    assert loud["mismatch/log_ratio_abs_max"] == pytest.approx(2.4, abs=0.01)


def test_a_huge_ratio_is_clamped_and_counted_not_infinite() -> None:
    got = log_space_metrics(pairs_of([[-900.0, -0.1]], [[-0.1, -0.1]]))
    assert got["mismatch/clamped_tokens"] == 1
    assert got["mismatch/ratio_mean"] == pytest.approx((np.exp(20) + 1) / 2)
    assert np.isfinite(list(got.values())).all()


def test_what_is_no_log_prob_is_excluded_and_counted() -> None:
    got = log_space_metrics(pairs_of([[np.nan, -0.1, 3.0, -0.2, -1.0]], [[-0.1, np.inf, -0.1, -np.inf, -1.0]]))
    assert (got["mismatch/tokens"], got["mismatch/excluded_tokens"]) == (1, 4)
    assert got["mismatch/zero_train_prob_tokens"] == 1
    assert got["mismatch/k3"] == 0


def test_no_token_leaves_counts_and_no_means() -> None:
    assert log_space_metrics(pairs_of([[-0.1]], [[-0.1]], [[0]])) == {
        "mismatch/tokens": 0,
        "mismatch/excluded_tokens": 0,
        "mismatch/zero_train_prob_tokens": 0,
    }
