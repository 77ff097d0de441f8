"""``logparity analyze`` over the store and over dumps, and ``logparity export``: numbers, safety, exit codes."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logparity.cli import main
from logparity.probe import Probe, ProbeConfig, StoreConfig, analyze_folder, open_run
from tests.support.mismatch_truth import mismatch_truth
from tests.support.rollouts import PAIRS

DUMP = PAIRS / "clean_vllm_bf16_vs_hf_bf16.npz"
HOSTILE = "\x1b[31m</script><script>alert(1)</script>\u202e[bold]"


def write_run(folder: Path, **arguments: Any) -> None:
    data = np.load(DUMP, allow_pickle=False)
    probe = Probe(
        ProbeConfig(
            enabled=True, strict=True, background=False, run_dir=folder, run_id="r", store=StoreConfig(tokens_every=1)
        )
    )
    names = {"rollout_log_probs": "rollout_log_probs", "old_log_probs": "old_log_probs", "token_ids": "responses"}
    for step in range(3):
        probe.observe(
            step=step,
            response_mask=data["response_mask"],
            **{name: data[key] for name, key in names.items()},
            **arguments,
        )
    probe.close()


def truth() -> dict[str, float]:
    data = np.load(DUMP, allow_pickle=False)
    mask = data["response_mask"].astype(bool)
    sides = (data["rollout_log_probs"], data["old_log_probs"], mask)
    return mismatch_truth([(r[m], t[m]) for r, t, m in zip(*sides, strict=True)])


def test_the_store_gives_the_numbers_of_plain_float64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", keys=[f"k{i}" for i in range(32)], groups={"env": ["math", "code"] * 16})
    assert main(["analyze", str(tmp_path / "run"), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "run_analysis.html").exists()
    for step in got["steps"]:
        for key, value in truth().items():
            assert step["metrics"][key] == pytest.approx(value, rel=1e-9, abs=1e-12), key
    assert got["metrics"]["mismatch/tokens"] == 3 * truth()["mismatch/tokens"]
    assert {row["label"] for row in got["groups"]["env"]} == {"math", "code"}
    assert main(["analyze", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    for text in ("By step", "By env", "math", "Tokens with the largest |L|", "verl.prob_diff_notice", "0.00709"):
        assert text in shown
    assert (tmp_path / "run_analysis.html").exists()


def test_a_dump_gives_the_same_as_the_probe_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["analyze", str(DUMP), "--json", "--out", str(page)]) == 0
    got = json.loads(capsys.readouterr().out)
    for key, value in truth().items():
        assert got["metrics"][key] == pytest.approx(value, rel=1e-9, abs=1e-12), key
    assert any("layout" in note for note in got["notes"])
    assert page.exists()


class Scripts(HTMLParser):
    """Counts scripts and collects what would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.remote = 0, []  # type: ignore[var-annotated]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.remote += [value for name, value in attrs if name in ("src", "href") and value]


def test_text_from_data_is_text_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = [HOSTILE + str(i) for i in range(32)]
    write_run(tmp_path / "clean", keys=[f"k{i}" for i in range(32)])
    write_run(tmp_path / "run", keys=hostile, groups={HOSTILE: hostile})
    for name in ("clean", "run"):
        assert main(["analyze", str(tmp_path / name)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[31m" not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown
    parsed = []
    for name in ("clean", "run"):
        parser = Scripts()
        parser.feed((tmp_path / f"{name}_analysis.html").read_text(encoding="utf-8"))
        parsed.append((parser.scripts, parser.remote))
    assert parsed[0] == parsed[1]
    assert parsed[0][1] == []
    assert "<script>alert" not in (tmp_path / "run_analysis.html").read_text(encoding="utf-8")


def test_tables_are_exported_for_machines(tmp_path: Path) -> None:
    write_run(tmp_path / "run", keys=["=cmd()", *(f"k{i}" for i in range(1, 32))])
    for what, name in (("metrics", "m.csv"), ("groups", "g.csv"), ("worst", "w.csv"), ("metrics", "m.jsonl")):
        assert main(["export", str(tmp_path / "run"), str(tmp_path / name), "--what", what]) == 0
    with (tmp_path / "m.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    assert float(rows[1]["mismatch/k3"]) == open_run(tmp_path / "run").steps[1].metrics["mismatch/k3"]
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines[2]["mismatch/k3"] == float(rows[2]["mismatch/k3"])
    assert "\n=cmd" not in (tmp_path / "w.csv").read_text()
    assert ",=cmd" not in (tmp_path / "w.csv").read_text()


def test_tokens_are_exported_as_arrays_and_as_plain_pairs(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    data = np.load(DUMP, allow_pickle=False)
    mask = data["response_mask"].astype(bool)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "npz"), "--what", "samples"]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "pairs"), "--what", "pairs"]) == 0
    analysis = analyze_folder(tmp_path / "pairs")
    assert len(analysis.steps) == 3
    assert analysis.summary.moments.count == 3 * mask.sum()
    # float16 log-probs: 2^-11 relative
    assert analysis.summary.moments.mean == pytest.approx(truth()["mismatch/prob_diff_mean"], rel=2e-3)
    sample = np.load(tmp_path / "npz" / "step_0.npz", allow_pickle=False)
    row = int(str(sample["keys"][0]).removeprefix("row"))
    np.testing.assert_array_equal(sample["rollout_log_probs"][0], data["rollout_log_probs"][row])
    np.testing.assert_array_equal(sample["response_mask"][0], mask[row])


def test_what_cannot_be_exported_ends_in_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    for arguments in (
        [str(tmp_path / "absent"), str(tmp_path / "x.csv")],
        [str(tmp_path / "run"), str(tmp_path / "x.txt")],
        [str(tmp_path / "run"), str(tmp_path / "x.csv"), "--what", "pairs"],
        [str(tmp_path / "run"), str(tmp_path / "x.csv"), "--what", "census"],
        [str(tmp_path / "run"), "/proc/x.csv"],
    ):
        assert main(["export", *arguments]) == 2
        assert "error:" in capsys.readouterr().err
    assert not list(tmp_path.glob("x*"))
