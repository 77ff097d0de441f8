"""Offline analysis against numpy, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from logparity.errors import InputError
from logparity.probe import ProbeConfig, TokenProbe, analyze_folder
from logparity.probe import analysis as analysis_module
from tests.support.rollouts import rollout_of, save_dump_pairs, save_pair, scored_of


def check_against_numpy(folder: Path, written: list[tuple[np.ndarray, np.ndarray]]) -> None:
    got = analyze_folder(folder)
    everything = np.concatenate([diff[mask] for diff, mask in written]).astype(np.float64)
    moments = got.summary.moments
    assert moments.count == everything.size
    assert moments.mean == pytest.approx(everything.mean(), rel=1e-12)
    assert moments.std == pytest.approx(everything.std(ddof=1), rel=1e-9)
    assert moments.maximum == everything.max()
    for percent, value in got.summary.percentiles.items():
        assert value == pytest.approx(np.percentile(everything, percent), rel=1e-9, abs=1e-12)
    width = max(diff.shape[1] for diff, _ in written)
    for position in range(width):
        here = [diff[mask[:, position], position] for diff, mask in written if position < diff.shape[1]]
        column = np.concatenate(here).astype(np.float64)
        assert got.position_count[position] == column.size
        expected = column.mean() if column.size else np.nan
        assert got.position_mean[position] == pytest.approx(expected, rel=1e-12, nan_ok=True)
    for step, (diff, mask) in zip(got.steps, written, strict=True):
        assert step.summary.moments.mean == pytest.approx(diff[mask].mean(dtype=np.float64), rel=1e-12)
        assert step.summary.percentiles[99] == pytest.approx(np.percentile(diff[mask].astype(float), 99), rel=1e-9)
        for row in range(len(diff)):
            values = diff[row, mask[row]].astype(np.float64)
            assert step.sample_count[row] == values.size
            assert step.sample_mean[row] == pytest.approx(values.mean() if values.size else np.nan, nan_ok=True)
            assert step.sample_max[row] == pytest.approx(values.max() if values.size else np.nan, nan_ok=True)


def test_pairs_of_the_engine_dumps_give_what_numpy_gives(tmp_path: Path) -> None:
    check_against_numpy(tmp_path, save_dump_pairs(tmp_path))


def test_ragged_steps_of_different_shapes_read_in_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_module, "_BLOCK_SLOTS", 300)
    rng, written = np.random.default_rng(0), []
    for step, (rows, width) in enumerate([(7, 129), (3, 5), (11, 64)]):
        mask = rng.random((rows, width)) < 0.5
        mask[0] = False
        diff = np.where(mask, rng.random((rows, width)) ** 4, 0).astype(np.float32)
        save_pair(tmp_path, f"_step_{step}", diff, mask)
        written.append((diff, mask))
    check_against_numpy(tmp_path, written)


def test_the_files_of_the_probe_are_read_with_keys_and_the_last_attempt_counts(tmp_path: Path) -> None:
    for old in ([-0.1, -0.1], [-0.5, -0.1]):
        probe = TokenProbe(ProbeConfig(enabled=True, save_dir=tmp_path, strict=True))
        probe.observe([rollout_of("a", [-0.1, -0.1])], scored_of(a=old), step=1)
    got = analyze_folder(tmp_path)
    assert got.summary.moments.maximum == pytest.approx(np.exp(-0.1) - np.exp(-0.5), abs=1e-6)
    assert [name.attempt for name in got.superseded] == [1]
    assert got.steps[0].keys == ("a",)


def test_what_is_not_finite_is_counted_and_what_leaked_past_the_mask_is_told(tmp_path: Path) -> None:
    diff = np.array([[0.5, np.nan, np.inf, 0.25, np.nan]], np.float32)
    save_pair(tmp_path, "", diff, np.array([[1, 1, 1, 0, 0]], bool))
    got = analyze_folder(tmp_path)
    assert (got.summary.moments.count, got.summary.not_finite, got.leaked) == (1, 2, 2)
    assert got.summary.moments.maximum == 0.5


def test_an_empty_mask_is_an_analysis_of_nothing(tmp_path: Path) -> None:
    save_pair(tmp_path, "_step_0", np.zeros((2, 3), np.float32), np.zeros((2, 3), bool))
    got = analyze_folder(tmp_path)
    assert got.summary.moments.count == 0
    assert got.summary.percentiles == {}
    assert np.isnan(got.position_mean).all()


def test_what_cannot_be_analysed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing there"):
        analyze_folder(tmp_path / "absent")
    with pytest.raises(InputError, match="got none"):
        analyze_folder(tmp_path)
    ok, mask = np.zeros((2, 3), np.float32), np.ones((2, 3), bool)
    cases: dict[str, tuple[np.ndarray, np.ndarray, str]] = {
        "shapes": (ok, np.ones((2, 4), bool), r"\(2, 3\).*\(2, 4\)"),
        "objects": (np.array([[{}]], object), np.ones((1, 1), bool), "plain .npy array"),
        "one axis": (ok[0], mask[0], r"shape \[B, R\]"),
        "integers": (ok.astype(np.int64), mask, "expected floats"),
        "negative": (ok - 1, mask, ">= 0"),
    }
    for name, (diff, mask, message) in cases.items():
        save_pair(tmp_path / name, "_step_1", diff, mask)
        with pytest.raises(InputError, match=message):
            analyze_folder(tmp_path / name)
    (tmp_path / "shapes" / "prob_mask_step_1.npy").unlink()
    with pytest.raises(InputError, match=r"prob_mask_step_1\.npy"):
        analyze_folder(tmp_path / "shapes")
    (tmp_path / "negative" / "prob_diff_step_1.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(InputError, match=r"prob_diff_step_1\.npy"):
        analyze_folder(tmp_path / "negative")


def test_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save_pair(tmp_path, "_step_1", np.zeros((2, 3), np.float32), np.ones((2, 3), bool))
    for text, message in (('{"keys": ["a"]}', "expected 2 keys"), ("[]", "list 'keys'")):
        (tmp_path / "prob_diff_step_1.keys.json").write_text(text)
        with pytest.raises(InputError, match=message):
            analyze_folder(tmp_path)
