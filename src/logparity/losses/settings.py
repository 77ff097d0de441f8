"""Checks of what a config is made from, with errors that list what would have been right."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from logparity.errors import ConfigError

Choice = TypeVar("Choice", bound=Enum)


def as_choice(kind: type[Choice], value: object, name: str) -> Choice:
    """The member of an enum that a value names.

    Args:
        kind: the enum.
        value: a member, or its value.
        name: named in the error.

    Returns:
        The member.

    Raises:
        ConfigError: there is no such member; lists them.
    """
    try:
        return kind(value)
    except ValueError as error:
        choices = ", ".join(str(member.value) for member in kind)
        raise ConfigError(f"{name}: expected one of {choices}, got {value!r}.") from error


def require_numbers(**values: object) -> None:
    """Check that settings are numbers at all; their ranges are each config's own matter.

    Args:
        **values: by name.

    Raises:
        ConfigError: one is a text, a bool, none, or anything else that is not an int or float.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name}: expected a number, got {value!r}.")


def require_kind(name: str, value: object, *kinds: type) -> None:
    """Check that a part of a config is itself one of our configs.

    Args:
        name: named in the error.
        value: what was given.
        *kinds: what may be given.

    Raises:
        ConfigError: the value is of none of these kinds.
    """
    if not isinstance(value, kinds):
        wanted = ", ".join("None" if kind is type(None) else f"{kind.__name__}(...)" for kind in kinds)
        expected = f"one of {wanted}" if len(kinds) > 1 else wanted
        raise ConfigError(f"{name}: expected {expected}, got {value!r}.")
