"""``logparity plan``: the table, the verdict, the exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from logparity.cli import main
from logparity.cli.gpus import GPU_MIB, gpu_mib
from logparity.errors import InputError

GIB = 2**30
SHAPE = ["plan", "--tokens", "32768", "--vocab", "151936"]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = main([*SHAPE, *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_sizes_are_those_of_the_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run_json(capsys)
    ways = {way["way"]: way for way in said["ways"]}
    logits = 2 * 32768 * 151936
    assert code == 0
    assert ways["naive fp32 log_softmax"]["total_bytes"] == logits + 3 * 2 * logits
    assert ways["token_log_probs"]["total_bytes"] - 2 * logits < 20 * 2**20
    assert ways["token_log_probs, grad_into_logits"]["total_bytes"] - logits < 20 * 2**20
    assert all(way["fits"] is None for way in said["ways"])


def test_tensor_parallel_shares_and_hidden_states_need_no_logits(capsys: pytest.CaptureFixture[str]) -> None:
    _, whole = run_json(capsys)
    _, quarter = run_json(capsys, "--tp", "4", "--hidden", "4096")
    assert quarter["ways"][0]["total_bytes"] * 4 == whole["ways"][0]["total_bytes"]
    hidden = quarter["ways"][-1]
    assert hidden["way"] == "linear_token_log_probs"
    assert hidden["logits_bytes"] == 0
    assert hidden["total_bytes"] < quarter["ways"][0]["total_bytes"] / 4


def test_what_fits_a_gpu_and_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run_json(capsys, "--gpu", "h100", "--used-gib", "50")
    fits = {way["way"]: way["fits"] for way in said["ways"]}
    assert code == 0
    assert said["room_bytes"] == 81559 * 2**20 - 50 * GIB
    assert not fits["naive fp32 log_softmax"]
    assert fits["token_log_probs"]


def test_exit_code_1_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*SHAPE, "--memory-gib", "8"])
    shown = capsys.readouterr().out
    assert code == 1
    assert "Nothing fits: start from hidden states (--hidden)" in " ".join(shown.split())


def test_the_table_names_every_way_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*SHAPE, "--hidden", "4096", "--gpu", "a100-80gb"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    for name in ("naive fp32 log_softmax", "F.cross_entropy", "grad_into_logits", "linear_token_log_probs"):
        assert name in shown
    assert "T=32,768, V=151,936, H=4,096" in shown


@pytest.mark.parametrize("tokens", ["999999999999", "1" + "0" * 40])
def test_huge_numbers_are_shown_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tokens: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan", "--tokens", tokens, "--vocab", "99999999", "--hidden", "4096", "--gpu", "a100-80gb"]) == 1
    shown = capsys.readouterr().out
    assert "\u2026" not in shown
    assert "fits" in shown
    if len(tokens) == 12:
        logits_eib = 2 * (10**12 - 1) * 99999999 / 2**60
        assert f"{logits_eib:,.1f} EiB" in shown
        assert max(map(len, shown.splitlines()[:-1])) <= 80


def test_entropy_leaves_out_the_way_that_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    _, said = run_json(capsys, "--entropy", "grad")
    assert "F.cross_entropy in fp32" not in [way["way"] for way in said["ways"]]
    _, scoring = run_json(capsys, "--no-backward")
    assert "token_log_probs, grad_into_logits" not in [way["way"] for way in scoring["ways"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "8", "--vocab", "0"], "vocab: expected a whole number >= 1, got 0"),
        (["--tokens", "8", "--vocab", "8", "--gpu", "h101"], "gpu: expected one of a100-40gb, "),
        (["--tokens", "8", "--vocab", "8", "--gpu", "a100"], "expected one of a100-40gb, a100-80gb, got 'a100'"),
        (
            ["--tokens", "8", "--vocab", "8", "--gpu", "l4", "--memory-gib", "8"],
            "expected --gpu or --memory-gib, got both",
        ),
        (["--tokens", "8", "--vocab", "8", "--used-gib", "8"], "--used-gib: expected a device to go with it"),
        (["--tokens", "8", "--vocab", "8", "--memory-gib", "8", "--used-gib", "9"], "less than the device's 8.0 GiB"),
        (["--tokens", "8", "--vocab", "8", "--chunk-size", "0"], "chunk_size: expected a whole number >= 1, got 0"),
        (["--tokens", "8", "--vocab", "8", "--memory-gib", "nan"], "expected finite --memory-gib > 0"),
        (["--tokens", "8", "--vocab", "8", "--memory-gib", "inf"], "got inf and 0.0"),
        (["--tokens", "8", "--vocab", "8", "--memory-gib", "1e300"], "expected finite --memory-gib > 0"),
        (["--tokens", "8", "--vocab", "8", "--memory-gib", "0"], "got 0.0 and 0.0"),
        (
            ["--tokens", "8", "--vocab", "8", "--gpu", "l4", "--used-gib", "nan"],
            "and --used-gib >= 0, got None and nan",
        ),
        (
            ["--tokens", "8", "--vocab", "8", "--gpu", "l4", "--used-gib", "-1"],
            "and --used-gib >= 0, got None and -1.0",
        ),
        (["--tokens", "8"], "--vocab"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_gpu_names_may_leave_out_the_size_where_it_is_not_in_doubt() -> None:
    assert gpu_mib("H100") == gpu_mib("h100_80gb") == GPU_MIB["h100-80gb"]
    with pytest.raises(InputError, match="a100-40gb, a100-80gb"):
        gpu_mib("A100")


def test_planning_works_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from logparity.cli import main\n"
        "sys.exit(main(['plan', '--tokens', '8', '--vocab', '1000', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
