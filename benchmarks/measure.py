"""How it is measured: peak memory by the kernel's high-water mark, time interleaved with a bare read of the data."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """
    settle_memory()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to what is resident now
    before = _status("VmRSS")
    kept = call()
    peak = _status("VmHWM")
    del kept
    return max(peak - before, 0)


@dataclass(frozen=True)
class Timing:
    """Seconds of the repeats of one contender, each with the bare read that ran just before it."""

    seconds: tuple[float, ...]
    yardstick: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

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


def _clock(call: Callable[[], object]) -> tuple[float, float]:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    kept = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    del kept
    return wall, cpu


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    yardstick: Callable[[], object],
    repeats: int,
    after: Callable[[str], object],
) -> dict[str, Timing]:
    """Time every contender ``repeats`` times in turn, each time next to the yardstick.

    In turn, because the speed of a shared machine drifts: whoever is measured in one block wins or loses with it.
    ``after`` runs after each call, off the clock.
    """
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            unit, _ = _clock(yardstick)
            wall, cpu = _clock(call)
            rows[name].append((wall, unit, cpu))
            after(name)
    return {name: _timing(measured) for name, measured in rows.items()}


def _timing(measured: Sequence[tuple[float, float, float]]) -> Timing:
    seconds, yardstick, cpu = zip(*measured, strict=True)
    return Timing(seconds, yardstick, cpu)
