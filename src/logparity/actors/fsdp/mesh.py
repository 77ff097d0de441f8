"""Who computes what with whom: all ranks as a grid of data-parallel rows and tensor-parallel columns."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from logparity.errors import InputError
from logparity.models.loading import as_device

DATA, TENSOR = "data", "tensor"


def open_mesh(tensor: int = 1, device: str | torch.device | None = None) -> DeviceMesh:
    """Lay out the ranks of the default process group; every rank calls it.

    Args:
        tensor: neighbouring ranks that share every matrix and the vocabulary; the others share sequences and shards.
        device: kind of device that the ranks compute on; None picks CUDA where there is one.

    Returns:
        A mesh ``(data, tensor)``.

    Raises:
        InputError: there is no process group, or the number of ranks is no multiple of ``tensor``.
    """
    if not dist.is_initialized():
        raise InputError("open_mesh: expected a process group, got none. Start with torchrun and init_process_group.")
    ranks = dist.get_world_size()
    if tensor < 1 or ranks % tensor:
        raise InputError(
            f"tensor: expected a size that divides the {ranks} ranks, got {tensor}. Start a multiple of it."
        )
    return init_device_mesh(as_device(device).type, (ranks // tensor, tensor), mesh_dim_names=(DATA, TENSOR))


def mesh_device(mesh: DeviceMesh) -> torch.device:
    """This rank's device."""
    return torch.device("cpu") if mesh.device_type == "cpu" else torch.device(mesh.device_type, _current(mesh))


def _current(mesh: DeviceMesh) -> int:
    return int(torch.get_device_module(mesh.device_type).current_device())


__all__ = ["DATA", "TENSOR", "mesh_device", "open_mesh"]
