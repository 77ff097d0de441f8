"""A verl platform named ``cpu``: no device to set, no memory to count, gloo to communicate."""

from __future__ import annotations

import contextlib
import types

import torch
import torch.distributed as dist
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args, **kwargs) -> None:
    """What there is to do on a device that is none."""


def _zero(*args, **kwargs) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """Stands where verl looks for ``torch.cuda``."""
    module = types.ModuleType("cpu_device")
    for name in ("empty_cache", "ipc_collect", "synchronize", "set_device", "reset_peak_memory_stats"):
        setattr(module, name, _nothing)
    for name in (
        "current_device",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
    ):
        setattr(module, name, _zero)
    module.is_available = lambda: False
    module.device_count = lambda: 1
    module.mem_get_info = lambda *_: (0, 0)
    module.get_device_name = lambda *_: "CPU"
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    module.manual_seed = module.manual_seed_all = torch.manual_seed
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The abstract methods, each with the least that lets a run go through."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False


def _gloo_once(init):
    """verl asks for one backend per device, ``cpu:gloo,cpu:gloo``; torch refuses to be told of a device twice."""

    def init_process_group(backend=None, *args, **kwargs):
        return init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    return init_process_group


dist.init_process_group = _gloo_once(dist.init_process_group)
