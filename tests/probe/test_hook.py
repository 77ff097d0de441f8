"""The probe inside a loop: what it returns, what it writes, and that it never harms the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from logparity.errors import InputError
from logparity.probe import ProbeConfig, TokenProbe, calculate_debug_metrics
from logparity.records import ScoredTokens
from tests.support.rollouts import PAIRS, rollout_of, rollouts_of_dump, scored_of

CLEAN = PAIRS / "clean_vllm_bf16_vs_hf_bf16.npz"


def test_a_dump_as_ragged_rollouts_gives_what_the_padded_batch_gives(tmp_path: Path) -> None:
    rollouts, scored = rollouts_of_dump(CLEAN)
    backwards = ScoredTokens(scored.keys[::-1], scored.log_probs[::-1])
    got = TokenProbe(ProbeConfig(enabled=True, save_dir=tmp_path, strict=True)).observe(rollouts, backwards, step=3)
    padded = dict(np.load(CLEAN, allow_pickle=False))
    for key, value in calculate_debug_metrics(padded).items():
        assert got[key] == pytest.approx(value, abs=1e-9)
    assert got["mismatch/tokens"] == padded["response_mask"].sum()
    diff, mask = np.load(tmp_path / "prob_diff_step_3.npy"), np.load(tmp_path / "prob_mask_step_3.npy")
    np.testing.assert_array_equal(mask, padded["response_mask"].astype(bool))
    assert got["mismatch/prob_diff_p99"] == pytest.approx(np.percentile(diff[mask], 99), rel=1e-6)
    keys = json.loads((tmp_path / "prob_diff_step_3.keys.json").read_text())["keys"]
    assert keys == [r.key for r in rollouts]
    assert got["training/rollout_probs_diff/s7_p0009"] == diff[7, 9]


def test_disabled_it_does_nothing_at_all(tmp_path: Path) -> None:
    probe = TokenProbe(ProbeConfig(save_dir=tmp_path / "out"))
    assert probe.observe(None, None, step=0) == {}  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_calls_within_a_step_and_repeats_of_a_step_keep_their_own_files(tmp_path: Path) -> None:
    config = ProbeConfig(enabled=True, save_dir=tmp_path, strict=True)
    rollouts, scored = [rollout_of("a", [-0.1])], scored_of(a=[-0.2])
    first, resumed = TokenProbe(config), TokenProbe(config)
    for probe, step in ((first, 1), (first, 1), (first, 2), (resumed, 2)):
        probe.observe(rollouts, scored, step=step)
    assert sorted(p.name for p in tmp_path.glob("prob_diff*.npy")) == [
        "prob_diff_step_1.npy",
        "prob_diff_step_1_sub1.npy",
        "prob_diff_step_2.npy",
        "prob_diff_step_2_attempt2.npy",
    ]


def test_masked_tokens_may_hold_anything(tmp_path: Path) -> None:
    rollouts = [rollout_of("a", [-0.1, np.nan, -0.3], mask=[1, 0, 1]), rollout_of("b", [-0.4])]
    probe = TokenProbe(ProbeConfig(enabled=True, save_dir=tmp_path, strict=True))
    got = probe.observe(rollouts, scored_of(a=[-0.1, np.inf, -0.3], b=[-0.4]), step=0)
    assert got["training/rollout_probs_diff_max"] == 0
    assert got["mismatch/tokens"] == 3
    np.testing.assert_array_equal(np.load(tmp_path / "prob_diff_step_0.npy"), np.zeros((2, 3), np.float32))


def test_a_folder_that_fails_turns_the_writer_off_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    probe = TokenProbe(ProbeConfig(enabled=True, save_dir=tmp_path / "file"))
    for step in range(3):
        got = probe.observe([rollout_of("a", [-0.1, -0.5])], scored_of(a=[-0.2, -0.5]), step=step)
        assert got["training/rollout_probs_diff_valid"] == 1
    assert got["probe/unwritten_files"] == 3
    assert len(caplog.records) == 1


def test_a_full_disk_leaves_no_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("logparity.probe.atomic.os.fsync", full)
    probe = TokenProbe(ProbeConfig(enabled=True, save_dir=tmp_path))
    assert probe.observe([rollout_of("a", [-0.1, -0.5])], scored_of(a=[-0.2, -0.5]), step=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scored", [scored_of(b=[-0.1]), scored_of(a=[-0.1, -0.2])], ids=["no score", "other length"])
def test_sides_that_do_not_belong_together_are_said_once_and_counted(
    scored: ScoredTokens, caplog: pytest.LogCaptureFixture
) -> None:
    probe = TokenProbe(ProbeConfig(enabled=True))
    for count in (1, 2):
        assert probe.observe([rollout_of("a", [-0.1])], scored, step=count) == {"probe/failed_batches": count}
    assert len(caplog.records) == 1
    assert "'a'" in caplog.text
    with pytest.raises(InputError, match="'a'"):
        TokenProbe(ProbeConfig(enabled=True, strict=True)).observe([rollout_of("a", [-0.1])], scored, step=0)


def test_nothing_that_is_not_finite_reaches_a_tracker() -> None:
    probe = TokenProbe(ProbeConfig(enabled=True))
    got = probe.observe([rollout_of("a", [-0.1, -0.2])], scored_of(a=[np.nan, -np.inf]), step=0)
    assert np.isfinite(list(got.values())).all()
    assert got["mismatch/excluded_tokens"] == 2
    assert got["mismatch/zero_train_prob_tokens"] == 1


def test_an_empty_batch_is_no_error() -> None:
    assert TokenProbe(ProbeConfig(enabled=True, strict=True)).observe([], scored_of(), step=0)["mismatch/tokens"] == 0


def test_a_negative_grid_is_refused() -> None:
    with pytest.raises(InputError, match="token_max_print"):
        ProbeConfig(token_max_print=-1)
