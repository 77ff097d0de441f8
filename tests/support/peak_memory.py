"""Peak memory of operations, each in a process of its own, by the kernel's high-water mark.

Run as a program with a JSON list of problems; prints for each the peak in bytes beyond what was resident
before the call.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Problem = dict[str, Any]


def peak_bytes(problems: list[Problem]) -> list[int]:
    """Measure ``token_log_probs`` or ``linear_token_log_probs`` for problems worded like `plan_memory`'s arguments."""
    root = Path(__file__).resolve().parents[2]
    # Small allocations off the heap: what is freed goes back to the kernel, so the mark shows what is held.
    environment = dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536", OMP_NUM_THREADS="1", PYTHONPATH=str(root))
    command = [sys.executable, "-W", "ignore", __file__, json.dumps(problems)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(field)


def _measure(problem: Problem) -> int:
    import torch

    from logparity.ops import linear_token_log_probs, token_log_probs

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[problem.pop("dtype", "bf16")]
    columns = problem["vocab"] // problem.get("tp", 1)
    options = {"entropy": problem.get("entropy", "none"), "chunk_size": problem.get("chunk_size", "auto")}
    backward = problem.get("backward", True)

    def inputs(tokens: int, columns: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        targets = torch.randint(columns, (tokens,))
        if problem.get("from_hidden"):
            hidden = torch.full((tokens, problem["hidden"]), 0.01, dtype=dtype)
            weight = torch.full((columns, problem["hidden"]), 0.01, dtype=dtype)
            return [hidden.requires_grad_(backward), weight.requires_grad_(backward)], targets
        return [torch.full((tokens, columns), 0.5, dtype=dtype).requires_grad_(backward)], targets

    def call(leaves: list[torch.Tensor], targets: torch.Tensor) -> list[torch.Tensor]:
        if problem.get("from_hidden"):
            scores = linear_token_log_probs(*leaves, targets, **options)
        elif problem.get("grad_into_logits"):
            scores = token_log_probs(_Made.apply(leaves[0]), targets, grad_into_logits=True, **options)
        else:
            scores = token_log_probs(leaves[0], targets, **options)
        if not backward:
            return list(filter(None.__ne__, scores))
        roots = [each for each in scores if each is not None and each.requires_grad]
        ones = [torch.ones_like(each) for each in roots]
        return list(torch.autograd.grad(roots, leaves, ones))

    class _Made(torch.autograd.Function):
        """Logits that a model made, in the memory of the leaf."""

        @staticmethod
        def forward(_ctx: Any, logits: torch.Tensor) -> torch.Tensor:
            return logits.detach()

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    call(*inputs(130, 5000))  # kernels and thread pools are no property of the operation
    leaves, targets = inputs(problem["tokens"], columns)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    kept = call(leaves, targets)
    peak = _resident("VmHWM") - before
    del kept
    return peak


def _in_a_child(problem: Problem) -> None:
    """Measure in a fork of a process that has imported torch and computed nothing: as fresh as a new one."""
    child = os.fork()
    if child == 0:
        sys.stdout.write(f"{_measure(problem)}\n")
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, problem


if __name__ == "__main__":
    import logparity.ops.api  # noqa: F401  (before the forks: imports are no part of what is measured)
    import logparity.ops.linear  # noqa: F401

    for each in json.loads(sys.argv[1]):
        _in_a_child(each)
