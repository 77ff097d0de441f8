"""Process groups as arguments: what ``group=None`` stands for, a group's rank and size, and how it gathers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed the call and warns about the old name; earlier versions have the old name only.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)


def resolve_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group itself; for None the default group where one is initialised, else None (a single process)."""
    if group is None and dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return group


def group_size(group: dist.ProcessGroup | None) -> int:
    """Number of ranks of a resolved group; 1 for a single process."""
    return 1 if group is None else group.size()


def group_rank(group: dist.ProcessGroup | None) -> int:
    """This process's rank within a resolved group; 0 for a single process."""
    return 0 if group is None else group.rank()


def gather_flat(sent: Tensor, group: dist.ProcessGroup | None, size: int) -> Tensor:
    """All ranks' equally long flat tensors, ``[size, numel]`` in rank order; one collective."""
    received = sent.new_empty(size, sent.numel())
    assert _ALL_GATHER is not None
    _ALL_GATHER(received.view(-1), sent, group=group)
    return received


def speaking_device(group: dist.ProcessGroup | None, device: torch.device) -> torch.device:
    """Where a group communicates: ``device``, unless its backend is NCCL alone, which knows only this rank's GPU."""
    # A rank that was handed tensors on the wrong device has to reach the others all the same.
    if group is not None and device.type != "cuda" and dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return device
