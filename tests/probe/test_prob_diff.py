"""The two functions that verl users call: values, keys, files, and every edge of them."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logparity.errors import InputError
from logparity.probe import calculate_debug_metrics, calculate_token_level_prob_diff

DUMPS = sorted((Path(__file__).parents[1] / "data" / "pairs").glob("*.npz"))
VALID, PEARSON = "training/rollout_probs_diff_valid", "training/rollout_actor_probs_pearson_corr"


def batch_of(rollout: Any, old: Any, mask: Any = None, **more: Any) -> Any:
    entries = {"rollout_log_probs": rollout, "old_log_probs": old, "responses": np.zeros(np.shape(rollout), np.int64)}
    if mask is not None:
        entries["response_mask"] = mask
    return SimpleNamespace(batch={**entries, **more})


def ragged(seed: int, rows: int = 7, width: int = 129) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rollout = -rng.exponential(2.0, (rows, width)).astype(np.float32)
    old = np.minimum(rollout + rng.normal(0, 0.05, rollout.shape), 0).astype(np.float32)
    mask = np.arange(width) < rng.integers(2, width, (rows, 1))
    return rollout, old, mask


def published_aggregates(rollout: np.ndarray, old: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """The formulas that verl publishes, written from their definition, in float64."""
    p, q = (np.exp(np.asarray(x, np.float64)[mask.astype(bool)]) for x in (rollout, old))
    diff = np.abs(p - q)
    spread = np.sqrt(((diff - diff.mean()) ** 2).sum() / (len(diff) - 1))
    dp, dq = p - p.mean(), q - q.mean()
    return {
        VALID: 1.0,
        "training/rollout_probs_diff_max": diff.max(),
        "training/rollout_probs_diff_mean": diff.mean(),
        "training/rollout_probs_diff_std": spread,
        PEARSON: (dp * dq).sum() / np.sqrt((dp**2).sum() * (dq**2).sum()),
    }


@pytest.mark.parametrize("path", DUMPS, ids=lambda p: p.stem)
def test_aggregates_of_every_engine_dump_equal_the_published_formulas(path: Path) -> None:
    dump = np.load(path, allow_pickle=False)
    rollout, old, mask = dump["rollout_log_probs"], dump["old_log_probs"], dump["response_mask"]
    got = calculate_debug_metrics(batch_of(rollout, old, mask))
    assert got == pytest.approx(published_aggregates(rollout, old, mask), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_aggregates_of_ragged_batches_equal_the_published_formulas(seed: int) -> None:
    rollout, old, mask = ragged(seed)
    assert calculate_debug_metrics(batch_of(rollout, old, mask)) == pytest.approx(
        published_aggregates(rollout, old, mask), abs=1e-6
    )


def test_torch_agrees_where_verl_computes_with_it() -> None:
    rollout, old, mask = (torch.from_numpy(x) for x in ragged(11))
    diff = (old.exp() - rollout.exp()).abs()[mask]
    got = calculate_debug_metrics(batch_of(rollout, old, mask))
    assert got["training/rollout_probs_diff_std"] == pytest.approx(diff.std().item(), abs=1e-6)
    assert got["training/rollout_probs_diff_max"] == pytest.approx(diff.max().item(), abs=1e-6)


def test_files_hold_the_difference_where_the_mask_is_one_and_exact_zero_elsewhere(tmp_path: Path) -> None:
    rollout, old, mask = ragged(1)
    rollout[~mask], old[~mask] = np.nan, np.inf
    calculate_token_level_prob_diff(batch_of(rollout, old, mask), save_dir=tmp_path, step=7)
    diff, saved = np.load(tmp_path / "prob_diff_step_7.npy"), np.load(tmp_path / "prob_mask_step_7.npy")
    assert (diff.dtype, diff.shape, saved.dtype) == (np.float32, rollout.shape, np.bool_)
    np.testing.assert_array_equal(saved, mask)
    assert not diff[~mask].any()
    expected = np.abs(np.exp(rollout[mask].astype(np.float64)) - np.exp(old[mask].astype(np.float64)))
    np.testing.assert_allclose(diff[saved], expected, atol=2e-7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["prob_diff_step_7.npy", "prob_mask_step_7.npy"]


def test_without_a_step_the_names_have_none(tmp_path: Path) -> None:
    calculate_token_level_prob_diff(batch_of(*ragged(1)), save_dir=tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"prob_diff.npy", "prob_mask.npy"}


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert calculate_token_level_prob_diff(batch_of(*ragged(1)), step=1)
    assert not list(tmp_path.iterdir())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), st.integers(0, 7), st.integers(0, 6), st.integers(0, 9), st.integers(0, 2**16))
def test_grid_holds_the_first_cells_of_the_mask_and_no_other(
    rows: int, width: int, samples: int, tokens: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rollout, old = (-rng.random((rows, width), np.float32) for _ in range(2))
    mask = rng.random((rows, width)) < 0.6
    grid = calculate_token_level_prob_diff(
        batch_of(rollout, old, mask), token_max_print=tokens, sample_max_print=samples
    )
    expected = {
        f"training/rollout_probs_diff/s{s}_p{p:04d}": abs(np.exp(rollout[s, p]) - np.exp(old[s, p]))
        for s in range(min(rows, samples))
        for p in range(min(width, tokens))
        if mask[s, p]
    }
    assert grid == pytest.approx(expected, abs=1e-7)
    # A tracker that reduces keys by the words in them must find none of its words in these.
    assert not any(word in key for key in grid for word in ("mean", "max", "min"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_dtype_is_compared_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    rollout, old, mask = (torch.from_numpy(x) for x in ragged(3))
    rollout, old = rollout.to(dtype).requires_grad_(), old.to(dtype)
    calculate_token_level_prob_diff(batch_of(rollout, old, mask), save_dir=tmp_path, step=1)
    widened = (rollout.detach().float().double().exp() - old.float().double().exp()).abs()
    diff = np.load(tmp_path / "prob_diff_step_1.npy")
    np.testing.assert_allclose(diff[mask.numpy()], widened[mask].numpy(), atol=2e-7)
    expected = published_aggregates(rollout.detach().float().numpy(), old.float().numpy(), mask.numpy())
    assert calculate_debug_metrics(batch_of(rollout, old, mask)) == pytest.approx(expected, abs=1e-6)


def test_inputs_are_left_as_they_are() -> None:
    rollout, old, mask = ragged(3)
    before = rollout.copy(), old.copy(), mask.copy()
    calculate_token_level_prob_diff(batch_of(rollout, old, mask))
    calculate_debug_metrics(batch_of(rollout, old, mask))
    for now, then in zip((rollout, old, mask), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_the_attention_mask_stands_in_with_its_last_columns_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rollout, old, mask = ragged(4, rows=3, width=6)
    attention = np.concatenate([np.ones((3, 5), bool), mask], axis=1).astype(np.int64)
    got = calculate_debug_metrics(batch_of(rollout, old, attention_mask=attention))
    assert got == pytest.approx(published_aggregates(rollout, old, mask), abs=1e-6)
    assert "tool" in caplog.text


@pytest.mark.parametrize("name", ["rollout_log_probs", "old_log_probs", "responses", "response_mask"])
def test_a_missing_entry_gives_nothing_and_one_warning_that_names_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = batch_of(*ragged(2))
    data.batch[name] = None
    assert calculate_token_level_prob_diff(data, save_dir=tmp_path / "out", step=1) == {}
    assert not (tmp_path / "out").exists()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert name in caplog.text
    if name == "rollout_log_probs":
        assert "calculate_log_probs=True" in caplog.text
    del data.batch[name]
    assert calculate_debug_metrics(data) == {VALID: 0.0}


def test_an_empty_mask_gives_no_key_and_files_of_zeros(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rollout, old, mask = ragged(2)
    data = batch_of(rollout, old, np.zeros_like(mask))
    assert calculate_token_level_prob_diff(data, save_dir=tmp_path, step=0) == {}
    assert not np.load(tmp_path / "prob_diff_step_0.npy").any()
    assert not np.load(tmp_path / "prob_mask_step_0.npy").any()
    assert calculate_debug_metrics(data) == {VALID: 0.0}
    assert "no active token" in caplog.text


def test_one_token_and_constant_probabilities_leave_out_what_is_undefined_and_say_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = calculate_debug_metrics(batch_of(np.array([[-0.5, 0.0]]), np.array([[-1.0, 0.0]]), [[1, 0]]))
    assert set(one) == {VALID, "training/rollout_probs_diff_max", "training/rollout_probs_diff_mean"}
    assert "only one" in caplog.text
    caplog.clear()
    constant = calculate_debug_metrics(batch_of(np.full((2, 3), -0.1), -np.arange(6.0).reshape(2, 3), np.ones((2, 3))))
    assert PEARSON not in constant
    assert constant["training/rollout_probs_diff_std"] > 0
    assert "rollout probabilities are constant" in caplog.text


def test_tokens_without_a_probability_are_excluded_counted_and_stay_visible_in_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollout, old, mask = ragged(5)
    mask[0, 0] = mask[1, 1] = True
    rollout[0, 0], old[1, 1] = np.nan, np.inf
    usable = mask.copy()
    usable[0, 0] = usable[1, 1] = False
    got = calculate_debug_metrics(batch_of(rollout, old, mask))
    assert got == pytest.approx(published_aggregates(rollout, old, usable), abs=1e-6)
    assert "2 active tokens left out" in caplog.text
    grid = calculate_token_level_prob_diff(batch_of(rollout, old, mask), save_dir=tmp_path, step=1)
    assert "training/rollout_probs_diff/s0_p0000" not in grid
    assert np.isnan(np.load(tmp_path / "prob_diff_step_1.npy")[0, 0])


def test_a_second_run_of_a_step_and_its_sub_steps_keep_their_own_files(tmp_path: Path) -> None:
    for scale, arguments in ((1.0, {}), (0.9, {"sub_step": 0}), (0.5, {"sub_step": 1}), (0.2, {"attempt": 5})):
        data = batch_of(np.log(np.full((1, 2), scale)), np.zeros((1, 2)), np.ones((1, 2)))
        calculate_token_level_prob_diff(data, save_dir=tmp_path, step=3, **arguments)
    found = {p.name: float(np.load(p)[0, 0]) for p in tmp_path.glob("prob_diff*.npy")}
    assert found == pytest.approx(
        {
            "prob_diff_step_3.npy": 0.0,
            "prob_diff_step_3_attempt2.npy": 0.1,
            "prob_diff_step_3_sub1.npy": 0.5,
            "prob_diff_step_3_attempt5.npy": 0.8,
        },
        abs=1e-6,
    )


def test_an_unwritable_folder_costs_the_files_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert calculate_token_level_prob_diff(batch_of(*ragged(2)), save_dir=tmp_path / "file" / "sub", step=1)
    assert "metrics go on" in caplog.text


@pytest.mark.parametrize("step", ["../../etc", 1.5, -1])
def test_a_step_that_is_no_number_cannot_leave_the_folder(step: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="step"):
        calculate_token_level_prob_diff(batch_of(*ragged(2)), save_dir=tmp_path, step=step)
    assert not list(tmp_path.iterdir())


def test_shapes_that_do_not_belong_together_are_named() -> None:
    rollout, old, mask = ragged(2, rows=3, width=4)
    with pytest.raises(InputError, match=r"old_log_probs.*\(3, 4\).*\(3, 5\)"):
        calculate_debug_metrics(batch_of(rollout, np.zeros((3, 5)), mask))
    with pytest.raises(InputError, match="keys: expected 3"):
        calculate_token_level_prob_diff(batch_of(rollout, old, mask), keys=["a"])
