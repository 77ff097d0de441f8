"""``logparity report``."""

from __future__ import annotations

from pathlib import Path

import pytest

from logparity.cli import main
from tests.support.run_folders import make_run


def test_report_is_written_into_the_run_or_where_it_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", steps=1)
    assert main(["report", str(run)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert main(["report", str(run), "--out", str(tmp_path / "other.html")]) == 0
    assert (run / "report.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_a_folder_without_a_run_ends_in_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert main(["report", str(tmp_path)]) == 2
    assert "Is it a run folder?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
