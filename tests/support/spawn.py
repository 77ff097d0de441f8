"""Run a function in several processes that form a gloo group."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def spawn(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Call ``function(rank, size, *args)`` in ``size`` processes that form a gloo group.

    The function must be importable (top level of a module). A hang ends after a minute.

    Returns:
        What each process returned, in rank order.

    Raises:
        AssertionError: a process raised; with the traceback of every one that did, the first to fail first.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(_enter, (function, size, folder, args), nprocs=size)
        except mp.ProcessRaisedException as failure:
            errors = sorted(Path(folder).glob("error-*"), key=lambda path: path.stat().st_mtime_ns)
            raise AssertionError("\n".join(f"{path.name}:\n{path.read_text()}" for path in errors)) from failure
        return [torch.load(Path(folder) / f"result-{rank}", weights_only=False) for rank in range(size)]


def _enter(rank: int, function: Callable[..., Any], size: int, folder: str, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    try:
        torch.save(function(rank, size, *args), Path(folder) / f"result-{rank}")
        dist.barrier()
    except Exception:
        (Path(folder) / f"error-{rank}").write_text(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()
