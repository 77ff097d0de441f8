"""The docs' tables are drawn from the results, and a page that cannot take them is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cases import CASES
from benchmarks.log_probs import write_results
from benchmarks.render import cell, markdown_table, render, replace_marked, section

MIB = 2**20


def row(contender: str, mode: str, **more: object) -> dict:
    return {"case": "logits", "mode": mode, "contender": contender, "origin": "torch"} | more


ROWS = [
    row("naive", "forward", peak_bytes=2374 * MIB, ratio_median=34.4, ratio_min=33.0, ratio_max=36.0, max_error=1e-5),
    row("naive", "forward + backward", peak_bytes=3561 * MIB, ratio_median=74.0, ratio_min=70.0, ratio_max=81.0),
    row("other", "forward", failed="ImportError: no triton"),
]


def test_one_line_a_contender_and_one_column_a_mode() -> None:
    lines = markdown_table(ROWS).splitlines()
    assert lines[0] == "| implementation | from | forward | forward + backward | worst error of a log-prob |"
    assert lines[2] == "| naive | torch | 34.4x (33-36) / 2,374 MiB | 74x (70-81) / 3,561 MiB | 1.0e-05 |"
    assert lines[3] == "| other | torch | does not run |  |  |"
    assert lines[-1] == "other (torch) does not run here: `ImportError: no triton`"


def test_small_memory_keeps_a_digit() -> None:
    assert cell(row("x", "forward", peak_bytes=1.25 * MIB)) == "1.2 MiB"


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="no '<!-- generated: logits -->'"):
        replace_marked("nothing here", "logits", "body")


def test_rendering_writes_page_and_figure_and_twice_is_once(tmp_path: Path) -> None:
    machine = {
        "cpu": "c",
        "threads": 2,
        "capability": "AVX512",
        "torch": "2",
        "clock": "wall",
        "load_before": 0.1,
        "minutes": 7,
    }
    shape = {"tokens": 2048, "vocab": 151936, "hidden": 0}
    results = {"logits": {"shape": shape, "machine": machine, "rows": ROWS}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    page = tmp_path / "benchmarks.md"
    page.write_text("before\n<!-- generated: logits -->\nold\n<!-- end -->\nafter\n")
    render(tmp_path / "results.json", tmp_path)
    first = page.read_text()
    assert "2,374 MiB" in first
    assert "old" not in first
    assert first.startswith("before")
    assert first.endswith("after\n")
    assert (tmp_path / "figures" / "log_probs_logits.png").stat().st_size > 1000
    render(tmp_path / "results.json", tmp_path)
    assert page.read_text() == first


def test_the_page_in_the_docs_is_what_the_committed_results_say() -> None:
    root = Path(__file__).resolve().parents[2]
    results = json.loads((root / "benchmarks" / "results" / "log_probs.json").read_text())
    page = (root / "docs" / "benchmarks.md").read_text()
    assert results
    assert set(results) <= set(CASES)
    for case in results.values():
        assert section(case) in page


def test_measuring_one_case_again_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, ["logits", "hidden"], ROWS, {"cpu": "old"})
    write_results(path, ["logits"], ROWS[:1], {"cpu": "new"})
    results = json.loads(path.read_text())
    assert [results[name]["machine"]["cpu"] for name in ("logits", "hidden")] == ["new", "old"]
    assert len(results["logits"]["rows"]) == 1
