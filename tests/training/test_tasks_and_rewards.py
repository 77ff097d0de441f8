"""Prompt sets are well-formed and reproducible; rewards score them, and a failing reward names its sample."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from logparity.errors import ConfigError, RewardError
from logparity.training.rewards import RewardSample, arithmetic, compute_rewards, digits, find_reward
from logparity.training.tasks import arithmetic_prompts, read_prompts


@pytest.mark.parametrize(
    ("response", "expected"), [("", 0.0), ("12", 1.0), ("a 1", 0.5), ("  \n", 0.0), ("٣ab1", 0.25), ("no", 0.0)]
)
def test_digits_is_the_share_of_visible_ascii_digits(response: str, expected: float) -> None:
    assert digits(RewardSample("k", "p", response)) == expected


@pytest.mark.parametrize(
    ("response", "expected"), [("5", 1.0), ("2 + 3 = 5.", 1.0), ("5 or 6", 0.0), ("", 0.0), ("-5", 0.0)]
)
def test_arithmetic_takes_the_last_number(response: str, expected: float) -> None:
    assert arithmetic(RewardSample("k", "p", response, answer="5")) == expected


def test_arithmetic_prompts_have_right_answers_and_depend_on_the_seed_alone() -> None:
    prompts = arithmetic_prompts(40, seed=3)
    assert prompts == arithmetic_prompts(40, seed=3)
    assert prompts != arithmetic_prompts(40, seed=4)
    for prompt in prompts:
        assert str(eval(prompt.text.split("?")[0].removeprefix("What is "))) == prompt.answer


def test_prompts_are_read_from_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "hi"}\n\n{"prompt": "2+2?", "answer": 4}\n', encoding="utf-8")
    first, second = read_prompts(path)
    assert (first.text, first.answer) == ("hi", None)
    assert (second.key, second.answer) == ("mine-00003", "4")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "at least one prompt"),
        ("\n", "at least one prompt"),
        ("[1]", "line 1"),
        ('{"prompt": ""}', "line 1"),
        ("{", "line 1"),
    ],
)
def test_bad_prompt_files_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_prompts(path)


SAMPLES = [RewardSample(f"s{i}", "p", text) for i, text in enumerate(["ok", "raise", "nan", "ok"])]


def moody(sample: RewardSample) -> float:
    if sample.response == "raise":
        raise ValueError("boom")
    return math.nan if sample.response == "nan" else 1.0


def test_a_failing_reward_stops_the_run_and_names_the_sample() -> None:
    with pytest.raises(RewardError, match=r"sample 's1' raised ValueError\('boom'\)"):
        compute_rewards(moody, SAMPLES, "stop")
    with pytest.raises(RewardError, match="sample 's2': expected a finite number, got nan"):
        compute_rewards(moody, SAMPLES[2:], "stop")


def test_or_its_samples_are_left_out() -> None:
    rewards, problems = compute_rewards(moody, SAMPLES, "skip")
    assert rewards == [1.0, None, None, 1.0]
    assert [("s1" in problems[0]), ("s2" in problems[1])] == [True, True]


def test_a_reward_is_found_by_module_and_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards_xyz.py").write_text(
        "def length(sample):\n    return len(sample.response)\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert find_reward("my_rewards_xyz:length")(SAMPLES[0]) == 2
    with pytest.raises(ConfigError, match="has no function 'width'"):
        find_reward("my_rewards_xyz:width")
    with pytest.raises(ConfigError, match="importing 'no_such_module' failed"):
        find_reward("no_such_module:f")
    with pytest.raises(ConfigError, match="expected one of arithmetic, digits or module:function"):
        find_reward("digit")
