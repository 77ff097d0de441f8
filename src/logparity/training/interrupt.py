"""Ctrl-C and SIGTERM as a request: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether someone asked the run to stop.

    Args:
        say: takes the line that answers the first signal.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self._say = say

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """Note the first signal; the second one interrupts at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        name = signal.Signals(signum).name
        self._say(f"{name}: finishing this step, then saving. Once more stops at once.")


@contextmanager
def stop_on_signal(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a `StopRequest` while the block runs.

    Args:
        say: takes the line that answers the first signal.

    Yields:
        The request; outside the main thread it never changes.
    """
    request = StopRequest(say)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier: dict[signal.Signals, Any] = {s: signal.signal(s, request.handle) for s in _SIGNALS}
    try:
        yield request
    finally:
        for s, handler in earlier.items():
            signal.signal(s, handler)
