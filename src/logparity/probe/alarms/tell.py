"""Tells an alarm: to the log, to a webhook, to a command. None of them can hurt the run."""

from __future__ import annotations

import json
import logging
import subprocess
import urllib.request
from typing import Any

from logparity.probe.alarms.config import AlarmConfig
from logparity.probe.alarms.rules import Severity
from logparity.probe.alarms.watch import Alarm

logger = logging.getLogger("logparity.probe")

_TIMEOUT_S = 10.0


def tell(alarm: Alarm, evidence: dict[str, Any], config: AlarmConfig) -> list[str]:
    """Tell one alarm.

    Args:
        alarm: what began.
        evidence: sent along, as JSON.
        config: whom to tell.

    Returns:
        What went wrong in telling; each is logged as well.
    """
    level = logging.INFO if alarm.severity is Severity.NOTICE else logging.WARNING
    logger.log(level, "Alarm %s", alarm.sentence)
    body = json.dumps(evidence, default=str).encode()
    failures = []
    for name, send in (("webhook", _post), ("command", _run)):
        target = getattr(config, name)
        if target is None:
            continue
        try:
            send(target, body)
        except Exception as error:  # whoever is to be told may be down; the run goes on
            failures.append(f"{name}: {type(error).__name__}: {error}")
            logger.warning("Alarm %s was not told to the %s (%s).", alarm.name, name, error)
    return failures


def _post(address: str, body: bytes) -> None:
    request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass


def _run(command: tuple[str, ...], body: bytes) -> None:
    subprocess.run(
        command,
        input=body,
        timeout=_TIMEOUT_S,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


__all__ = ["tell"]
