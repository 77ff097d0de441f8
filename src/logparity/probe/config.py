"""Settings of the per-token comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from logparity.errors import InputError
from logparity.probe.alarms.config import AlarmConfig
from logparity.probe.store.config import StoreConfig


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """What the probe does on every step; off by default, and free when off.

    Args:
        enabled: compare rollout and train log-probs on every step.
        save_dir: folder for the ``.npy`` pairs; None writes no files.
        token_max_print: positions per sample in the grid of scalar metrics.
        sample_max_print: samples in the grid.
        strict: raise where the probe cannot do its work, in place of one warning; for tests and debugging.
        run_dir: folder of the store, shared by all ranks; None keeps nothing on disk. `Probe` only, as all below.
        rank: of this process among those that share ``run_dir``.
        run_id: names the run; None draws one per process. A resumed run gives the id that it had.
        labels: what every sample of this process has in common, as a group key, e.g. ``{"engine": "vllm"}``.
        background: compute and write in a thread of its own; False does it inside the call.
        queue_calls: calls that may wait for that thread; what does not fit is dropped and counted.
        group_limit: distinct labels told apart per group key; further ones are counted together as ``other``.
        store: tiers and quota of the store.
        alarms: rules, and whom they tell.

    Raises:
        InputError: a number is out of its range.
    """

    enabled: bool = False
    save_dir: Path | None = None
    token_max_print: int = 10
    sample_max_print: int = 8
    strict: bool = False
    run_dir: Path | None = None
    rank: int = 0
    run_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    background: bool = True
    queue_calls: int = 8
    group_limit: int = 64
    store: StoreConfig = field(default_factory=StoreConfig)
    alarms: AlarmConfig = field(default_factory=AlarmConfig)

    def __post_init__(self) -> None:
        for name in ("token_max_print", "sample_max_print"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}: expected an integer >= 0, got {getattr(self, name)}. 0 leaves the grid out.")
        for name, least in (("rank", 0), ("queue_calls", 1), ("group_limit", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}: expected an integer >= {least}, got {getattr(self, name)}.")


__all__ = ["ProbeConfig"]
