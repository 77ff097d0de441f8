"""How it is measured: peak memory by the kernel's high-water mark, time interleaved with a bare read of the data."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from torch import Tensor

MIB = 2**20


def _status(field: str) -> int:
    """A ``kB`` field of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; memory can be measured on Linux only")


def settle_memory() -> None:
    """Give freed memory back to the kernel, so that what was used before cannot hide what is used next."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_extra_bytes(call: Callable[[], object]) -> int:
    """Bytes that a call needed at its worst moment beyond what was resident before it; its result counts.

    The high-water mark is the kernel's, so it sees every allocator. Meant for a fresh process, with small allocations
    kept off the heap (``MALLOC_MMAP_THRESHOLD_``), after a warm-up that loads the kernels.

    Returns:
        Bytes, at least 0.
    """
    settle_memory()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to what is resident now
    before = _status("VmRSS")
    kept = call()
    peak = _status("VmHWM")
    del kept
    return max(peak - before, 0)


class Clock(str, Enum):
    """What is read before and after a call."""

    WALL = "wall"
    CPU = "cpu"
    """Seconds that the process computed: for one thread on a machine that others use too."""

    def read(self) -> float:
        """Seconds since some moment."""
        return time.perf_counter() if self is Clock.WALL else time.process_time()


@dataclass(frozen=True)
class Timing:
    """Seconds of the repeats of one contender, each with the yardstick that ran just before it."""

    seconds: tuple[float, ...]
    yardstick: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Time over time of the yardstick, repeat by repeat; the yardstick's median damps its own noise."""
        unit = statistics.median(self.yardstick)
        return [s / unit for s in self.seconds]


def bare_read(data: Tensor) -> Callable[[], object]:
    """One pass over the bytes of a tensor at memory speed: the least that any forward pass can cost."""
    words = data.detach().view(torch.int64)
    return words.amax


def bare_matmul(hidden: Tensor, weight: Tensor) -> Callable[[], object]:
    """The plain product that a head computes: the least that a pass from hidden states can cost."""
    hidden, weight = hidden.detach(), weight.detach()
    return lambda: hidden @ weight.T


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    yardstick: Callable[[], object],
    repeats: int,
    after: Callable[[str], object],
    clock: Clock = Clock.WALL,
) -> dict[str, Timing]:
    """Time every contender ``repeats`` times in turn, each time next to the yardstick.

    In turn, because the speed of a shared machine drifts: whoever is measured in one block wins or loses with it.
    ``after`` runs after each call, off the clock.

    Returns:
        The timing of each.
    """
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            unit = _timed(yardstick, clock)
            rows[name].append((_timed(call, clock), unit))
            after(name)
    return {name: Timing(*zip(*measured, strict=True)) for name, measured in rows.items()}


def _timed(call: Callable[[], object], clock: Clock) -> float:
    gc.collect()
    start = clock.read()
    kept = call()
    seconds = clock.read() - start
    del kept
    return seconds
