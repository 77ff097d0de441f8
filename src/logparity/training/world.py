"""The processes of a run: one drives (samples, rewards, writes), all compute."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from logparity.errors import ConfigError

Value = TypeVar("Value")


class World(Protocol):
    """What the loop asks of the processes it runs in."""

    @property
    def is_driver(self) -> bool:
        """Whether this process samples, rewards, and writes."""
        ...

    def share(self, make: Callable[[], Value]) -> Value:
        """Let the driver make a picklable value and give it to everybody; its error is raised by everybody."""
        ...


class OneProcess:
    """A run in a single process."""

    is_driver = True

    def share(self, make: Callable[[], Value]) -> Value:
        """Make the value."""
        return make()


class ManyProcesses:
    """A run under ``torchrun``; rank 0 of the default process group drives."""

    @property
    def is_driver(self) -> bool:
        """Whether this is rank 0."""
        return dist.get_rank() == 0

    def share(self, make: Callable[[], Value]) -> Value:
        """Make the value on the driver and broadcast it, or its error.

        Args:
            make: called on the driver alone; its value must be picklable.

        Returns:
            The driver's value.
        """
        outcome: list[tuple[Value | None, Exception | None]] = [(None, None)]
        if self.is_driver:
            try:
                outcome = [(make(), None)]
            except Exception as error:  # raised below, on every rank
                outcome = [(None, error)]
        dist.broadcast_object_list(outcome, src=0, device=torch.device("cpu"))
        value, failure = outcome[0]
        if failure is not None:
            raise failure
        return value  # type: ignore[return-value]


@contextmanager
def open_world(backend: str) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, or be alone.

    Args:
        backend: the configured actor's; decides whether several processes make sense.

    Yields:
        The world; its process group lives as long as the block.

    Raises:
        ConfigError: several processes were started for an actor that runs in one.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if backend == "hf":
        if size > 1:
            raise ConfigError(
                f"actor.backend = 'hf' runs in one process, and {size} were started. Set actor.backend = 'fsdp' or "
                "'megatron', or start without torchrun."
            )
        yield OneProcess()
        return
    _join()
    try:
        yield ManyProcesses()
    finally:
        _leave()


def _leave() -> None:
    """End the process group, and with it its threads: one that outlives the interpreter aborts the process."""
    gc.collect()  # an actor's modules and meshes refer to each other, and to the groups
    dist.destroy_process_group()


def _join() -> None:
    """Make the default process group; a process that was not started by ``torchrun`` is a world of one."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
