"""The command line: teaching help, one-line errors, exit codes, and no torch where none is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from logparity.cli import main


def test_dry_run_prints_the_resolved_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "examples/grpo_cpu.toml", "--dry-run", "--run.steps", "2", "--probe.save-dir", "x/y"]) == 0
    resolved = json.loads(capsys.readouterr().out)
    assert resolved["run"]["steps"] == 2
    assert resolved["probe"]["save_dir"] == "x/y"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere.toml"], "error: Config file nowhere.toml: expected a TOML file, found none."),
        (["train", "examples/grpo_cpu.toml", "--probe.safe-dir", "x"], "Did you mean --probe.save-dir"),
        (["train", "examples/grpo_cpu.toml", "--rollout.temperature", "0"], "rollout.temperature"),
        (["train", "examples/grpo_cpu.toml", "--resume", "--overwrite"], "at most one"),
        (["train"], "CONFIG"),
        (["trian"], "train"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("train", "score", "analyze", "report", "plan", "doctor"):
        assert command in shown


def test_doctor_says_what_is_chosen_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "token_log_probs, cpu, bfloat16" in shown
    assert "chunked: " in shown


NO_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "jaxtyping", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH + code], capture_output=True, text=True, timeout=120, check=False
    )


def test_probe_report_and_cli_work_without_torch() -> None:
    result = run_without_torch("import logparity.probe, logparity.report, logparity.cli")
    assert result.returncode == 0, result.stderr
    result = run_without_torch("from logparity.cli import main; raise SystemExit(main(['train', 'nowhere.toml']))")
    assert result.returncode == 2
    assert "nowhere.toml" in result.stderr
    result = run_without_torch("from logparity.cli import main; raise SystemExit(main(['doctor']))")
    assert result.returncode == 0, result.stderr
    result = run_without_torch(
        "from logparity.cli import main; raise SystemExit(main(['train', 'examples/grpo_cpu.toml']))"
    )
    assert result.returncode == 2
    assert "logparity[train]" in result.stderr


def test_python_m_is_the_same_command(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "logparity", "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0
