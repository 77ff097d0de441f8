"""Which alarms a run watches for, and whom it tells."""

from __future__ import annotations

from dataclasses import dataclass

from logparity.errors import InputError
from logparity.probe.alarms.presets import PRESETS
from logparity.probe.alarms.rules import AlarmRule


@dataclass(frozen=True, slots=True)
class AlarmConfig:
    """Alarms of a run.

    Args:
        presets: names out of `PRESETS`; there is no single truth, so the name of the preset goes into the evidence.
        rules: further rules.
        webhook: http(s) address that gets every alarm as one JSON object by POST; None tells nobody.
        command: program and arguments, run once per alarm with the same JSON on its standard input; None runs nothing.
        strict: raise `AlarmError` out of the next call of the probe; for CI.

    Raises:
        InputError: a preset is unknown, two rules share a name, or the webhook is no http(s) address.
    """

    presets: tuple[str, ...] = ("verl", "sanity")
    rules: tuple[AlarmRule, ...] = ()
    webhook: str | None = None
    command: tuple[str, ...] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        for name in self.presets:
            if name not in PRESETS:
                raise InputError(f"alarm preset: expected one of {', '.join(PRESETS)}, got {name!r}.")
        names = [rule.name for rule in self.all_rules]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise InputError(f"alarm rules: expected every name once, got {', '.join(sorted(repeated))} repeated.")
        if self.webhook is not None and not self.webhook.startswith(("http://", "https://")):
            raise InputError(f"webhook: expected an http:// or https:// address, got {self.webhook!r}.")

    @property
    def all_rules(self) -> tuple[AlarmRule, ...]:
        """Rules of the presets, then the further ones."""
        return (*(rule for name in self.presets for rule in PRESETS[name]), *self.rules)


__all__ = ["AlarmConfig"]
