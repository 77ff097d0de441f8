"""An actor's checkpoint on disk: float32 masters in safetensors, optimizer state readable without pickle's powers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from logparity.actors.optimizer import MasterOptimizer
from logparity.errors import ModelError, RunFolderError

_WEIGHTS = "masters.safetensors"
_OPTIMIZER = "optimizer.pt"


def write_checkpoint(folder: Path, masters: Mapping[str, torch.nn.Parameter], optimizer: MasterOptimizer) -> None:
    """Write masters, moments, and counters into an existing, empty folder."""
    if not folder.is_dir():
        raise RunFolderError(f"checkpoint folder {folder} does not exist: make it first.")
    if any(folder.iterdir()):
        raise RunFolderError(f"checkpoint folder {folder} is not empty: choose a fresh one.")
    save_file({name: w.detach().contiguous() for name, w in masters.items()}, folder / _WEIGHTS)
    torch.save(optimizer.state_dict(), folder / _OPTIMIZER)


@torch.no_grad()
def read_checkpoint(folder: Path, masters: Mapping[str, torch.nn.Parameter], optimizer: MasterOptimizer) -> None:
    """Restore, bit by bit, what `write_checkpoint` wrote; a checkpoint of another model is refused untouched."""
    try:
        state = torch.load(folder / _OPTIMIZER, map_location="cpu", weights_only=True)
        with safe_open(folder / _WEIGHTS, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            expected = {name: tuple(w.shape) for name, w in masters.items()}
            if shapes != expected:
                differing = sorted({n for n in shapes | expected if shapes.get(n) != expected.get(n)})
                raise ModelError(
                    f"checkpoint {folder} belongs to another model: {differing[0]} differs in name or shape."
                )
            for name, master in masters.items():
                master.copy_(file.get_tensor(name))
    except (OSError, SafetensorError, EOFError, RuntimeError) as error:
        raise ModelError(f"checkpoint {folder} cannot be read: {error}") from error
    optimizer.load_state_dict(state)


__all__ = ["read_checkpoint", "write_checkpoint"]
