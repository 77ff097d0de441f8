"""Ctrl-C and SIGTERM as a request: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether someone asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """Note the first signal; the second one interrupts at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        name = signal.Signals(signum).name
        print(f"\n{name}: finishing this step, then saving. Once more stops at once.", flush=True)  # noqa: T201


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a `StopRequest` while the block runs.

    Yields:
        The request; outside the main thread it never changes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier: dict[signal.Signals, Any] = {s: signal.signal(s, request.handle) for s in _SIGNALS}
    try:
        yield request
    finally:
        for s, handler in earlier.items():
            signal.signal(s, handler)
