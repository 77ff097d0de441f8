"""``--fail-above``: turn a mean difference into an exit code that a CI job can act on."""

from __future__ import annotations

import math
import sys

from logparity.errors import ConfigError, InputError


def require_limit(limit: float | None) -> None:
    """Check the limit before any work is done.

    Args:
        limit: largest mean ``|p_rollout - p_train|`` that passes; None where none was asked for.

    Raises:
        ConfigError: it is no probability difference.
    """
    if limit is not None and not 0 <= limit <= 1:
        raise ConfigError(f"--fail-above: expected a difference of probabilities in [0, 1], got {limit}.")


def exit_code(mean: float | None, limit: float | None) -> int:
    """Compare, and say on stderr what was exceeded; stdout may be JSON.

    Args:
        mean: mean ``|p_rollout - p_train|``; None where there was no token to compare.
        limit: largest mean that passes; None passes everything.

    Returns:
        1 where the mean is above the limit, else 0.

    Raises:
        InputError: a limit was asked for and there is nothing to hold to it: that is no pass.
    """
    if limit is None:
        return 0
    if mean is None or not math.isfinite(mean):
        raise InputError("--fail-above: expected tokens with both log-probs to compare, got none.")
    if mean <= limit:
        return 0
    sys.stderr.write(f"mean |p_rollout - p_train| is {mean:.6g}, above --fail-above {limit:g}\n")
    return 1


__all__ = ["exit_code", "require_limit"]
