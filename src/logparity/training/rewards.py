"""Rewards: a sampled response in, a number out."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from logparity.errors import ConfigError, RewardError


@dataclass(frozen=True, slots=True)
class RewardSample:
    """What a reward sees.

    Args:
        key: identity of the sample.
        prompt: the user's text.
        response: decoded response, without special tokens.
        answer: the expected answer, or None.
    """

    key: str
    prompt: str
    response: str
    answer: str | None = None


Reward = Callable[[RewardSample], float]


def digits(sample: RewardSample) -> float:
    """Share of characters that are ASCII digits, white space not counted: in [0, 1]; 0 for an empty response."""
    visible = [c for c in sample.response if not c.isspace()]
    return sum(c in "0123456789" for c in visible) / len(visible) if visible else 0.0


def arithmetic(sample: RewardSample) -> float:
    """1 if the last number of the response is the expected one, else 0."""
    numbers = re.findall(r"-?\d+", sample.response)
    return float(bool(numbers) and numbers[-1] == sample.answer)


REWARDS: Mapping[str, Reward] = MappingProxyType({"digits": digits, "arithmetic": arithmetic})
"""Rewards that a configuration can name."""


def find_reward(name: str) -> Reward:
    """Look up a reward by registered name or by ``module:function``.

    Args:
        name: a key of `REWARDS`, or an importable ``module:function``; the working directory is searched too.

    Returns:
        The reward function.

    Raises:
        ConfigError: no such name, module, or function.
    """
    if ":" not in name:
        if name in REWARDS:
            return REWARDS[name]
        raise ConfigError(f"reward: expected one of {', '.join(sorted(REWARDS))} or module:function, got {name!r}.")
    module_name, _, function_name = name.partition(":")
    reward = getattr(_import(module_name, name), function_name, None)
    if not callable(reward):
        raise ConfigError(f"reward {name!r}: module {module_name!r} has no function {function_name!r}.")
    return reward  # type: ignore[no-any-return]


def _import(module_name: str, name: str) -> object:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"reward {name!r}: importing {module_name!r} failed: {error!r}.") from error
    finally:
        sys.path.remove(here)


def compute_rewards(
    reward: Reward, samples: Sequence[RewardSample], on_error: Literal["stop", "skip"]
) -> tuple[list[float | None], list[str]]:
    """Reward every sample.

    Args:
        reward: the function.
        samples: what it sees.
        on_error: ``"stop"`` raises on the first failure; ``"skip"`` leaves the sample without a reward.

    Returns:
        One reward per sample (None where it was skipped), and one message per skipped sample.

    Raises:
        RewardError: a reward raised or was not a finite number, and ``on_error`` is ``"stop"``.
    """
    rewards: list[float | None] = []
    problems: list[str] = []
    for sample in samples:
        try:
            rewards.append(_finite_reward(reward, sample))
        except RewardError as error:
            if on_error == "stop":
                raise
            problems.append(str(error))
            rewards.append(None)
    return rewards, problems


def _finite_reward(reward: Reward, sample: RewardSample) -> float:
    try:
        value = float(reward(sample))
    except (Exception, SystemExit) as error:  # a library's sys.exit must not end the run without a word
        raise RewardError(
            f"Reward of sample {sample.key!r} raised {error!r}. Fix the function, or set on_reward_error = 'skip'."
        ) from error
    if not math.isfinite(value):
        raise RewardError(
            f"Reward of sample {sample.key!r}: expected a finite number, got {value}. "
            "Fix the function, or set on_reward_error = 'skip'."
        )
    return value
