"""What a step cost: seconds by stage, throughput, memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds spent in each named stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block under a name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def metrics(self, tokens: int) -> dict[str, float]:
        """Times under ``timing_s/``, response tokens per second, and the process's peak memory so far.

        Args:
            tokens: response tokens of the step.

        Returns:
            Metrics that differ from run to run.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            **{f"timing_s/{name}": value for name, value in self.seconds.items()},
            "perf/tokens_per_second": tokens / max(sum(self.seconds.values()), 1e-9),
            "memory/max_rss_mib": peak / (2**20 if sys.platform == "darwin" else 2**10),
        }
