"""``logparity analyze``: its numbers equal numpy's, its errors end in exit code 2, its output is safe to print."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from logparity.cli import main
from tests.support.rollouts import save_dump_pairs, save_pair


def test_tables_hold_numpys_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = save_dump_pairs(tmp_path / "pairs")
    assert main(["analyze", str(tmp_path / "pairs"), "--positions", "96"]) == 0
    words = capsys.readouterr().out.split()
    values = np.concatenate([diff[mask] for diff, mask in written]).astype(np.float64)
    for number in (values.mean(), values.std(ddof=1), values.max(), *np.percentile(values, [50, 90, 99, 99.9])):
        assert f"{number:.6f}" in words
    assert f"{values.size:,}" in words
    diff, mask = (np.concatenate(arrays) for arrays in zip(*written, strict=True))
    for position in range(96):
        assert f"{diff[mask[:, position], position].mean(dtype=np.float64):.6f}" in words


def test_json_is_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = save_dump_pairs(tmp_path / "pairs")
    assert main(["analyze", str(tmp_path / "pairs"), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    values = np.concatenate([diff[mask] for diff, mask in written]).astype(np.float64)
    assert got["summary"]["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert got["summary"]["percentiles"]["99"] == pytest.approx(np.percentile(values, 99), rel=1e-9)
    assert [step["step"] for step in got["steps"]] == list(range(len(written)))
    assert not (tmp_path / "pairs_analysis.png").exists()


def test_the_plot_stands_beside_the_folder_or_where_it_is_wanted(tmp_path: Path) -> None:
    save_dump_pairs(tmp_path / "pairs")
    assert main(["analyze", str(tmp_path / "pairs")]) == 0
    assert main(["analyze", str(tmp_path / "pairs"), "--json", "--out", str(tmp_path / "x.png")]) == 0
    for path in (tmp_path / "pairs_analysis.png", tmp_path / "x.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "pairs").glob("*.png"))


@pytest.mark.parametrize("mask", [np.zeros((2, 3), bool), np.ones((2, 3), bool)], ids=["no token", "all equal"])
def test_a_plot_of_nothing_or_of_zeros_is_no_error(mask: np.ndarray, tmp_path: Path) -> None:
    save_pair(tmp_path / "pairs", "", np.zeros((2, 3), np.float32), mask)
    assert main(["analyze", str(tmp_path / "pairs")]) == 0


def test_without_matplotlib_the_tables_come_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_dump_pairs(tmp_path / "pairs")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["analyze", str(tmp_path / "pairs")]) == 0
    assert "logparity[plot]" in capsys.readouterr().out
    assert main(["analyze", str(tmp_path / "pairs"), "--out", str(tmp_path / "x.png")]) == 2


def test_wrong_input_ends_in_2_with_one_line_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    save_pair(tmp_path / "shapes", "_step_1", np.zeros((2, 3), np.float32), np.ones((2, 4), bool))
    save_pair(tmp_path / "objects", "_step_1", np.array([[print]], object), np.ones((1, 1), bool))
    save_pair(tmp_path / "mask", "_step_1", np.zeros((2, 3), np.float32), np.ones((2, 3), bool))
    (tmp_path / "mask" / "prob_mask_step_1.npy").unlink()
    wanted = {
        "absent": "nothing there",
        "empty": "got none",
        "shapes": "(2, 4)",
        "objects": "Python objects",
        "mask": "prob_mask",
    }
    for name, message in wanted.items():
        assert main(["analyze", str(tmp_path / name)]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert not captured.out
    save_pair(tmp_path / "fine", "", np.zeros((1, 1), np.float32), np.ones((1, 1), bool))
    assert main(["analyze", str(tmp_path / "fine"), "--out", str(tmp_path / "no" / "x.png")]) == 2


def test_hostile_sample_keys_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pair(tmp_path, "_step_1", np.full((1, 1), 0.5, np.float32), np.ones((1, 1), bool))
    keys = {"keys": ["\x1b[31m\u202e[bold]x"]}
    (tmp_path / "prob_diff_step_1.keys.json").write_text(json.dumps(keys))
    assert main(["analyze", str(tmp_path), "--no-plot"]) == 0
    out = capsys.readouterr().out
    assert "·[31m·[bold]x" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_what_was_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pair(tmp_path, "_step_1", np.array([[0.5, np.nan, 0.1]], np.float32), np.array([[1, 1, 0]], bool))
    save_pair(tmp_path, "_step_1_attempt2", np.array([[0.5, np.nan, 0.1]], np.float32), np.array([[1, 1, 0]], bool))
    assert main(["analyze", str(tmp_path), "--no-plot"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("1 valid tokens are NaN or inf", "1 slots outside the mask", "1 earlier attempts left out"):
        assert words in out


def test_exit_code_1_where_the_mean_is_above_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pair(tmp_path / "pairs", "", np.array([[0.25, 0.5, 9.0]], np.float32), np.array([[1, 1, 0]], bool))
    for limit, code in (("0.375", 0), ("0.3", 1)):
        assert main(["analyze", str(tmp_path / "pairs"), "--json", "--fail-above", limit]) == code
        shown = capsys.readouterr()
        assert json.loads(shown.out)["summary"]["mean"] == 0.375
        assert shown.err == ("" if code == 0 else "mean |p_rollout - p_train| is 0.375, above --fail-above 0.3\n")
    save_pair(tmp_path / "empty", "", np.zeros((1, 1), np.float32), np.zeros((1, 1), bool))
    assert main(["analyze", str(tmp_path / "empty"), "--no-plot", "--fail-above", "0.3"]) == 2
    assert "expected tokens with both log-probs" in capsys.readouterr().err
    assert main(["analyze", str(tmp_path / "pairs"), "--fail-above", "-1"]) == 2


def test_the_limit_holds_for_dumps_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"key": "a", "rollout_log_probs": [np.log(0.5)] * 2, "old_log_probs": [np.log(0.75), np.log(0.5)]}
    (tmp_path / "dump.jsonl").write_text(json.dumps(row))
    for limit, code in (("0.13", 0), ("0.12", 1)):  # the mean is 0.125
        assert main(["analyze", str(tmp_path / "dump.jsonl"), "--json", "--fail-above", limit]) == code
        assert ("above --fail-above" in capsys.readouterr().err) == bool(code)


def test_differences_of_log_probs_are_told_from_those_of_probabilities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pair(tmp_path, "_step_1", np.array([[0.5, 3.25]], np.float32), np.ones((1, 2), bool))
    assert main(["analyze", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "prob_diff_step_1.npy: expected |dp| <= 1" in error
    assert "got 3.25. These look like differences of log-probs" in error
    assert error.count("\n") == 1


def test_a_mask_of_ones_and_zeros_may_have_any_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff, mask = np.array([[0.25, 0.75, 0.5]], np.float32), np.array([[1, 0, 1]])
    for dtype in (np.bool_, np.int64, np.float32, np.float16):
        save_pair(tmp_path / np.dtype(dtype).name, "", diff, mask.astype(dtype))
        assert main(["analyze", str(tmp_path / np.dtype(dtype).name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["summary"]["mean"] == 0.375
    save_pair(tmp_path / "weights", "", diff, np.array([[1, 0.5, np.nan]], np.float32))
    assert main(["analyze", str(tmp_path / "weights")]) == 2
    assert "prob_mask.npy: expected only 0 and 1, got 0.5; 2 such" in capsys.readouterr().err
