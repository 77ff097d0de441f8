"""Put one function in another's place in a package that is already imported, and take it out again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Replaced:
    """What was put in place of what, where.

    Args:
        places: ``(module, name, original)`` of every attribute that was set.
    """

    places: tuple[tuple[ModuleType, str, Any], ...] = ()

    def __add__(self, other: Replaced) -> Replaced:
        return Replaced(self.places + other.places)

    @property
    def names(self) -> tuple[str, ...]:
        """``module.name`` of every place."""
        return tuple(f"{module.__name__}.{name}" for module, name, _ in self.places)

    def undo(self) -> None:
        """Put the originals back."""
        for module, name, original in self.places:
            setattr(module, name, original)


def rebind(package: str, original: Callable[..., Any], replacement: Callable[..., Any]) -> Replaced:
    """Set every module-level name of a package that holds ``original`` to ``replacement``.

    Modules that bound the function with ``from .. import`` before are reached as well as its home; modules that import
    it later take it from its home.

    Args:
        package: name of the top-level package.
        original: the function to replace.
        replacement: what takes its place.

    Returns:
        Where it was set.
    """
    found: list[tuple[ModuleType, str, Any]] = []
    for module_name, module in list(sys.modules.items()):
        if module is None or not (module_name == package or module_name.startswith(f"{package}.")):
            continue
        found += [(module, name, original) for name, value in list(vars(module).items()) if value is original]
    for module, name, _ in found:
        setattr(module, name, replacement)
    return Replaced(tuple(found))


__all__ = ["Replaced", "rebind"]
