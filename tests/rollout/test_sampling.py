from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logparity.records import LogProbMode, SamplingSettings
from logparity.rollout.sampling import draw, processed_log_probs, sample


def truth(logits: np.ndarray, s: SamplingSettings) -> np.ndarray:
    """The definition of each cut, one row at a time in float64."""
    rows = []
    for row in logits.astype(np.float64):
        p = np.exp((row - row.max()) / s.temperature)
        p /= p.sum()
        if s.top_k:
            p = np.where(p >= np.sort(p)[::-1][min(s.top_k, len(p)) - 1], p, 0)
            p /= p.sum()
        order = np.argsort(-p, kind="stable")
        if s.top_p < 1:
            count = int(np.searchsorted(np.cumsum(p[order]), s.top_p)) + 1
            p[order[count:]] = 0
            p /= p.sum()
        p = np.where(p >= s.min_p * p.max(), p, 0)
        rows.append(p / p.sum())
    with np.errstate(divide="ignore"):
        return np.log(np.stack(rows))


@pytest.mark.parametrize("vocab", [7, 1003])
@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(),
        SamplingSettings(temperature=0.4),
        SamplingSettings(temperature=1.7, top_k=5),
        SamplingSettings(top_p=0.6),
        SamplingSettings(min_p=0.2),
        SamplingSettings(temperature=0.8, top_k=6, top_p=0.7, min_p=0.1),
        SamplingSettings(top_k=5000),
    ],
    ids=str,
)
def test_the_sampled_distribution_is_the_defined_one(vocab: int, settings: SamplingSettings) -> None:
    logits = torch.randn(9, vocab, generator=torch.Generator().manual_seed(vocab)) * 3 + 500
    ours = processed_log_probs(logits, settings).numpy()
    expected = truth(logits.numpy(), settings)
    np.testing.assert_array_equal(np.isneginf(ours), np.isneginf(expected))
    kept = np.isfinite(expected)
    np.testing.assert_allclose(ours[kept], expected[kept], rtol=1e-6, atol=2e-6)


@given(seed=st.integers(0, 2**32), settings=st.sampled_from([SamplingSettings(top_p=0.3), SamplingSettings(top_k=2)]))
def test_cuts_keep_the_most_probable_id(seed: int, settings: SamplingSettings) -> None:
    logits = torch.randn(4, 13, generator=torch.Generator().manual_seed(seed))
    log_probs = processed_log_probs(logits, settings)
    assert torch.isfinite(log_probs.gather(1, logits.argmax(-1, keepdim=True))).all()


def test_every_id_is_drawn_as_often_as_its_probability_says() -> None:
    log_probs = torch.log_softmax(torch.tensor([[1.0, -2.0, 0.5, float("-inf"), 3.0]]), -1)
    n = 100_000
    uniforms = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    counts = torch.bincount(draw(log_probs.expand(n, -1), uniforms), minlength=5)
    np.testing.assert_allclose(counts / n, log_probs[0].exp(), atol=1.5 / n + 1e-7)
    assert counts[3] == 0


@pytest.mark.parametrize("u", [0.0, float(np.nextafter(1.0, 0.0))])
def test_the_ends_of_the_unit_interval_draw_possible_ids(u: float) -> None:
    log_probs = torch.tensor([[0.0, 0.5, 0.5, 0.0]]).log()
    assert draw(log_probs, torch.tensor([u], dtype=torch.float64)).item() == (1 if u == 0 else 2)


def test_raw_mode_reports_the_models_own_distribution() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    settings = SamplingSettings(temperature=0.5, top_k=4)
    uniforms = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    ids, raw = sample(logits, uniforms, settings, LogProbMode.RAW)
    same_ids, processed = sample(logits, uniforms, settings, LogProbMode.PROCESSED)
    assert ids.tolist() == same_ids.tolist()
    rows = range(3)
    plain = truth(logits.float().numpy(), SamplingSettings())[rows, ids]
    cut = truth(logits.float().numpy(), settings)[rows, ids]
    np.testing.assert_allclose(raw, plain, atol=2e-6)
    np.testing.assert_allclose(processed, cut, atol=2e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_row_reports_nan(bad: float) -> None:
    logits = torch.zeros(2, 5)
    logits[1, 2] = bad
    for mode in LogProbMode:
        _, log_probs = sample(logits, torch.full((2,), 0.5, dtype=torch.float64), SamplingSettings(), mode)
        assert log_probs.isnan().tolist() == [False, True]
