"""Process groups as arguments: what ``group=None`` stands for, and a group's rank and size."""

from __future__ import annotations

import torch.distributed as dist


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
