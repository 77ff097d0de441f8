"""One base error and few kinds. Every message says what was expected, what came, and the fix."""

from __future__ import annotations


class LogparityError(Exception):
    """Base of every error that logparity raises on purpose."""


class InputError(LogparityError, ValueError):
    """A value, shape, dtype, or device is wrong: the message gives expected, got, and the fix."""


class SupportError(InputError):
    """A sampling support is empty, malformed, or lacks its target; names row and id."""


class ShardError(InputError):
    """Vocabulary shards overlap, leave a gap, or disagree between ranks."""


class ConfigError(LogparityError, ValueError):
    """A configuration is wrong: an unknown key (with the nearest name), a bad value, a missing file."""


class RunFolderError(LogparityError, OSError):
    """A run folder cannot be used: it exists already, is not writable, or holds another run."""


class ModelError(LogparityError):
    """A model folder is missing, incomplete, or not supported."""


class RewardError(LogparityError):
    """A reward function raised or returned something that is not a finite number; names the sample."""


class NonFiniteError(LogparityError, ArithmeticError):
    """A value that had to be finite was NaN or infinite; names where."""


class AlarmError(LogparityError):
    """An alarm fired and the run asked to stop there; names the rules, the values, and the limits."""


class MissingDependencyError(LogparityError, ImportError):
    """An optional dependency is not installed; names the extra that brings it."""
