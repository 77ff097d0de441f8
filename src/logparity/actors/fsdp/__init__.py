"""Actor on Transformers over many processes: FSDP2 shards weights, gradients, and optimizer state."""

from __future__ import annotations

from logparity.actors.fsdp.actor import FSDPActor
from logparity.actors.fsdp.mesh import open_mesh

__all__ = ["FSDPActor", "open_mesh"]
