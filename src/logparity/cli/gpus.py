"""Memory of the GPUs that people ask about, in MiB as the driver reports it."""

from __future__ import annotations

from typing import Final

from logparity.errors import InputError

GPU_MIB: Final = {
    "a100-40gb": 40960,
    "a100-80gb": 81920,
    "h100-80gb": 81559,
    "h200-141gb": 143771,
    "b200-192gb": 183359,
    "l4-24gb": 23034,
    "l40s-48gb": 46068,
    "rtx-3090-24gb": 24576,
    "rtx-4090-24gb": 24564,
    "rtx-5090-32gb": 32607,
    "mi300x-192gb": 196592,
}


def gpu_mib(name: str) -> int:
    """Memory of a GPU by its name (any case; the size may be left out where it is not in doubt).

    Returns:
        MiB.

    Raises:
        InputError: there is none, or more than one, of that name.
    """
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    found = [known for known in GPU_MIB if known == wanted or known.rpartition("-")[0] == wanted]
    if len(found) != 1:
        offer = ", ".join(found or GPU_MIB)
        raise InputError(f"gpu: expected one of {offer}, got {name!r}. For others give --memory-gib.")
    return GPU_MIB[found[0]]
