"""Every algorithm runs two steps and resumes to the same numbers, on a small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logparity.cli import main
from logparity.errors import ConfigError
from logparity.losses import CISPOConfig, ClipConfig, GSPOConfig, PolicyObjective, Reduction, WeightMode
from logparity.training.algorithm import objective_of
from logparity.training.config import AlgorithmConfig, load_config

ALGORITHMS = {
    "grpo": ["--algorithm.entropy-coefficient", "0.01", "--actor.recompute-loss"],
    "dr_grpo": [],
    "dapo": ["--algorithm.dual-clip", "3"],
    "gspo": [],
    "cispo": ["--algorithm.correction.mode", "mask", "--algorithm.correction.low", "0.5"],
    "reinforce": ["--algorithm.correction.mode", "truncate", "--algorithm.correction.batch-normalise"],
    "rloo": ["--algorithm.opsm-threshold", "1e-4"],
    "reinforce++": ["--algorithm.kl-in-reward"],
    "reinforce++_baseline": [],
    "ppo": ["--algorithm.kl-in-reward"],
    "sft": ["--task.name", "arithmetic"],
}
LOGGED = {"ppo": "critic/loss", "sft": "sft/log_prob", "reinforce": "correction/weight"}
COSTS = ("timing_s/", "perf/", "memory/")


def read(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith(COSTS)} for line in lines]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_steps_and_a_resume(name: str, tiny_config: Path, tmp_path: Path) -> None:
    flags = ["--algorithm.name", name, *ALGORITHMS[name]]
    whole, parts = tmp_path / "run", tmp_path / "parts"
    assert main(["train", str(tiny_config), *flags, "--run.steps", "2"]) == 0
    lines = read(whole)
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["actor/skipped_steps"] == 0 and line["actor/grad_norm"] > 0 for line in lines)
    assert LOGGED.get(name, "policy/ratio") in lines[0]

    assert main(["train", str(tiny_config), *flags, "--run.folder", str(parts), "--run.steps", "1"]) == 0
    resume = ["--run.folder", str(parts), "--run.steps", "2", "--resume"]
    assert main(["train", str(tiny_config), *flags, *resume]) == 0
    assert read(parts) == lines


def test_one_step_on_the_policy_s_own_weights_has_ratio_one(tiny_config: Path, tmp_path: Path) -> None:
    flags = ["--run.steps", "1", "--actor.optimizer-steps-per-rollout", "1"]
    assert main(["train", str(tiny_config), *flags]) == 0
    (line,) = read(tmp_path / "run")
    assert line["policy/ratio"] == 1
    assert line["policy/clip_fraction"] == 0
    assert line["policy/kl_old"] == 0
    assert line["kl/reference"] == 0


def test_settings_reach_the_objective() -> None:
    dapo = objective_of(AlgorithmConfig(name="dapo"), 16)
    assert isinstance(dapo, PolicyObjective)
    assert dapo.surrogate == ClipConfig(0.2, 0.28)
    gspo = objective_of(AlgorithmConfig(name="gspo", clip_high=1e-3), 16)
    assert isinstance(gspo, PolicyObjective)
    assert gspo.surrogate == GSPOConfig(3e-4, 1e-3)
    assert isinstance(objective_of(AlgorithmConfig(name="cispo"), 16).surrogate, CISPOConfig)  # type: ignore[attr-defined]
    fixed = objective_of(AlgorithmConfig(name="dr_grpo"), 16)
    assert isinstance(fixed, PolicyObjective)
    assert (fixed.reduction.kind, fixed.reduction.length) == (Reduction.FIXED_LENGTH, 16)
    corrected = objective_of(AlgorithmConfig.model_validate({"correction": {"mode": "mask", "low": 0.5, "high": 5}}), 1)
    assert isinstance(corrected, PolicyObjective)
    assert corrected.correction is not None
    assert (corrected.correction.mode, corrected.correction.high) == (WeightMode.MASK, 5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algorithm.name", "sft"], "4 of 4 prompts have none"),
        (["--algorithm.kl-in-reward"], "kl_in_reward works with ppo and reinforce++"),
        (["--algorithm.name", "cispo", "--algorithm.dual-clip", "0.5"], "dual_clip"),
        (["--algorithm.correction.mode", "truncate", "--algorithm.correction.low", "0.5"], "low: expected 0"),
        (["--algorithm.correction.mode", "mask", "--algorithm.correction.low", "3"], "correction"),
        (["--actor.micro-batch-tokens", "8"], "Set micro_batch_tokens to at least"),
    ],
)
def test_contradictions_are_one_line_and_exit_code_2(
    flags: list[str], message: str, tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tiny_config), *flags]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_an_unknown_algorithm_names_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[algorithm]\nname = 'grop'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"algorithm\.name.*'grpo'.*got 'grop'"):
        load_config(path)
