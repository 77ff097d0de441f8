"""Prompt sets: what the policy is asked, and the answer where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from logparity.errors import ConfigError

_DIGITS = (
    "Tell me about the moon landing.",
    "How tall is a giraffe?",
    "How old is the universe?",
    "Give me a fact about the ocean.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task.

    Args:
        key: stable identity of the prompt.
        text: what the user says.
        answer: the expected answer, or None.
    """

    key: str
    text: str
    answer: str | None = None


def digits_prompts() -> tuple[Prompt, ...]:
    """Everyday questions whose natural answers hold few digits: a reward for digits has far to climb."""
    return tuple(Prompt(f"digits-{i:03d}", text) for i, text in enumerate(_DIGITS))


def arithmetic_prompts(size: int, seed: int) -> tuple[Prompt, ...]:
    """Generate additions and subtractions of one- and two-digit numbers.

    Args:
        size: number of prompts, >= 1.
        seed: decides the numbers.

    Returns:
        Prompts whose answer is the result, written in decimal.
    """
    rng = np.random.default_rng([seed, 0xA217])
    return tuple(_arithmetic(i, rng) for i in range(size))


def _arithmetic(index: int, rng: np.random.Generator) -> Prompt:
    a, b = (int(x) for x in rng.integers(1, 50, size=2))
    if rng.random() < 0.5:
        return Prompt(f"arithmetic-{index:04d}", f"What is {a} + {b}? Answer with the number only.", str(a + b))
    a, b = max(a, b), min(a, b)
    return Prompt(f"arithmetic-{index:04d}", f"What is {a} - {b}? Answer with the number only.", str(a - b))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read prompts from a JSONL file.

    Args:
        path: one object per line, ``{"prompt": str, "answer": str (optional)}``.

    Returns:
        Prompts keyed by file name and line number.

    Raises:
        ConfigError: the file is missing or empty, or a line is not such an object (names the line).
    """
    prompts = tuple(_parse_lines(path))
    if not prompts:
        raise ConfigError(f"task.file {path}: expected at least one prompt, found none. Add lines like {_EXAMPLE}.")
    return prompts


_EXAMPLE = '{"prompt": "What is 2 + 2?", "answer": "4"}'


def _parse_lines(path: Path) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"task.file {path}: cannot be read ({error}).") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _parse_line(line, f"{path.stem}-{number:05d}", f"task.file {path}, line {number}")


def _parse_line(line: str, key: str, where: str) -> Prompt:
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not valid JSON ({error}).") from None
    text = item.get("prompt") if isinstance(item, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: expected an object such as {_EXAMPLE}, got {line[:80]!r}.")
    answer = item.get("answer")
    return Prompt(key, text, None if answer is None else str(answer))
