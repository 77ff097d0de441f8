"""The probe for other people's trainers: one call per batch that copies and returns; the rest happens elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logparity.probe.config import ProbeConfig


class Probe:
    """Compares rollout and train log-probs of every call, keeps what the store is told to keep, watches for alarms.

    Outside ``config.strict`` nothing is raised, ever. `observe` copies what it is given and hands it to a thread;
    metrics of a step are returned by a later call, and say which step they belong to (``probe/metrics_step``).

    Args:
        config: what to do; disabled, every call returns at once.
    """

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config

    def observe(
        self,
        *,
        step: int,
        rollout_log_probs: Any,
        old_log_probs: Any,
        response_mask: Any = None,
        token_ids: Any = None,
        entropy: Any = None,
        keys: Sequence[object] | None = None,
        versions: Any = None,
        train_version: int | None = None,
        groups: Mapping[str, Sequence[object]] | None = None,
        lengths: Any = None,
        sub_step: int = 0,
    ) -> dict[str, float]:
        """Copy one batch and return the metrics that are ready. The inputs are left as they are.

        Every per-token argument comes in one of four layouts: padded ``[B, R]`` (array or tensor), a sequence of ``B``
        1-D rows, packed ``[N]`` with ``lengths``, or a nested tensor. Tensors may lie on any device, in any dtype.

        Args:
            step: training step.
            rollout_log_probs: nats, as the engine reported them; None entries of lists are counted as missing.
            old_log_probs: nats, of the trainer before the update.
            response_mask: 1 on tokens that the policy generated; wider than ``R``, its last ``R`` columns count; None
                takes every token of rows and packed tokens (padded arrays need it).
            token_ids: ids of the response tokens.
            entropy: of the trainer's distribution, nats.
            keys: ``B`` sample keys, any objects; their ``str`` identifies a sample. None takes row numbers.
            versions: version of the weights that sampled, per sample ``[B]`` or per token.
            train_version: version of the weights that scored; the lag is ``train_version - versions``.
            groups: group key to ``B`` labels, e.g. ``{"env": [...], "data_source": [...]}``.
            lengths: tokens of each of ``B`` packed rows.
            sub_step: optimisation sub-step; calls of one step and sub-step are one unit and add up.

        Returns:
            Metrics, finite values only: of this unit so far without a background thread; with one, of the units that
            were completed since the last call, the latest last.

        Raises:
            InputError: in strict mode, the arguments do not belong together.
            AlarmError: where alarms are strict, one has fired.
        """
        raise NotImplementedError

    def flush(self, timeout_s: float = 60.0) -> dict[str, float]:
        """Complete the unit that is open, wait for all work, and return the latest metrics."""
        raise NotImplementedError

    def close(self) -> None:
        """Complete the open unit, write it, and stop the thread; safe to call twice."""
        raise NotImplementedError


__all__ = ["Probe"]
