"""What fuzzing has found stays mended, and every target reads what it begins with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logparity.errors import InputError
from logparity.integrations.readers import read_dumps, read_verl_log
from tests.fuzz.targets import TARGETS, good_run, seeds

HERE = Path(__file__).parent
FINDINGS = sorted(path for path in (HERE / "findings").rglob("*") if path.is_file())
REPLAY = """
import sys
from pathlib import Path
from tests.fuzz.targets import TARGETS
TARGETS[sys.argv[1]](Path(sys.argv[2]).read_bytes())
"""


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_finding_is_read_or_refused(path: Path) -> None:
    """In a process of its own: some of them ended it, without an exception."""
    command = [sys.executable, "-c", REPLAY, path.parent.name, str(path)]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("target", TARGETS)
def test_good_input_passes(target: str) -> None:
    for content in seeds(target):
        TARGETS[target](content)


def test_the_seeds_are_good(tmp_path: Path) -> None:
    """A target whose seed is refused at once would fuzz nothing behind the refusal."""
    for kind in ("jsonl", "npz", "parquet", "pt"):
        (tmp_path / f"a.{kind}").write_bytes(seeds(kind)[0])
        (dump,) = read_dumps(tmp_path / f"a.{kind}")
        assert [mask.sum() for mask in dump.response_mask] == [2, 3]
    (tmp_path / "log.jsonl").write_bytes(seeds("verl_log")[0])
    assert len(list(read_verl_log(tmp_path / "log.jsonl"))) == 1
    assert len(list(good_run().rglob("*.parquet"))) == 4


def test_a_target_notices_a_file_that_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import targets

    def careless(source: Path, **_: object):
        (Path(source).parent / "extracted").touch()
        raise InputError("refused")

    monkeypatch.setattr(targets, "read_dumps", careless)
    with pytest.raises(targets.BrokenLawError, match="extracted"):
        TARGETS["npz"](b"")
