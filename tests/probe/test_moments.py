"""Parts add up to the whole: moments, aggregates, and exact quantiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from logparity.probe.moments import CoMoments, Moments
from logparity.probe.quantiles import FloatHistogram, exact_quantiles

VALUES = arrays(np.float32, st.integers(1, 60), elements=st.floats(0, 1, width=32))


@settings(deadline=None, max_examples=60)
@given(VALUES, st.data())
def test_moments_of_parts_add_up_to_the_moments_of_the_whole(values: np.ndarray, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(values)))
    merged, wide = Moments.of(values[:cut]) + Moments.of(values[cut:]), values.astype(np.float64)
    assert merged.count == len(values)
    assert merged.mean == pytest.approx(wide.mean(), abs=1e-12)
    assert (merged.minimum, merged.maximum) == (values.min(), values.max())
    if len(values) > 1:
        assert merged.std == pytest.approx(wide.std(ddof=1), abs=1e-9)
    else:
        assert merged.std is None


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 50), st.integers(0, 2**16))
def test_correlation_of_parts_adds_up(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.random(count)
    y = x + rng.normal(0, 0.1, count)
    cut = int(rng.integers(0, count + 1))
    merged = CoMoments.of(x[:cut], y[:cut]) + CoMoments.of(x[cut:], y[cut:])
    assert merged.pearson == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)


def test_a_constant_side_has_no_correlation_even_where_its_mean_rounds() -> None:
    constant = np.full(3, 0.1)
    assert CoMoments.of(constant, np.array([0.1, 0.2, 0.3])).pearson is None
    assert Moments().std is None


@settings(deadline=None, max_examples=60)
@given(st.lists(VALUES, min_size=1, max_size=4), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_quantiles_in_two_passes_equal_numpys(blocks: list[np.ndarray], q: list[float]) -> None:
    histogram = sum((FloatHistogram.of(block) for block in blocks), FloatHistogram())
    everything = np.concatenate(blocks).astype(np.float64)
    expected = np.quantile(everything, q)
    assert exact_quantiles(histogram, lambda: blocks, q) == pytest.approx(list(expected), rel=1e-9, abs=1e-12)


def test_quantiles_take_minus_zero_for_zero_and_nothing_for_nan() -> None:
    block = np.array([-0.0, 0.0, 1.0], np.float32)
    assert exact_quantiles(FloatHistogram.of(block), lambda: [block], [0.5]) == [0.0]
    assert np.isnan(exact_quantiles(FloatHistogram(), list, [0.5])).all()
