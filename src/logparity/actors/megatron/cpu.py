"""What Megatron-Core needs to run where there is no CUDA. Nothing here is active on a machine that has it.

Megatron-Core asks for its device in several ways. Each gets the CPU as its answer, by the narrowest means there is:

* ``torch.cuda.current_device()``, where a module or a receive buffer is made: there is no argument to change and no
  torch function to intercept, so the function is replaced, once, in `prepare`.
* a literal ``device="cuda"``, ``.cuda()``, ``pin_memory=True``, and comparisons of ``tensor.type()`` with
  ``"torch.cuda.FloatTensor"``, in the schedule and the optimizer: `megatron_calls` maps them while such a call runs.
* ``torch.cuda.synchronize()`` and the CUDA generator's state, around the exchange of shapes between pipeline stages
  and recomputed layers: nothing to wait for, and nothing random to restore, since dropout is 0.
* a side stream on which an experts' dispatcher copies its counts to the host: `prepare_experts` puts a plain
  conversion in its place, since the counts are on the host already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def without_cuda() -> bool:
    """Whether the stand-ins of this module are needed."""
    return not torch.cuda.is_available()


def prepare() -> None:
    """Answer the CUDA questions that only a replaced function can answer; does nothing where there is CUDA."""
    if not without_cuda():
        return
    # Rotary embeddings, column-parallel layers, and receive buffers are made on "the current device".
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    # Pipeline stages wait for the device after they exchange shapes, a workaround for CUDA's default stream.
    torch.cuda.synchronize = _nothing
    # Recomputed layers save and restore the CUDA generator next to the CPU's.
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state = _no_state


def prepare_experts() -> None:
    """Let a mixture-of-experts layer work without Transformer Engine and without CUDA streams."""
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # read, but not defined, where Transformer Engine is not installed
    if not without_cuda():
        return

    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = "cpu"  # only has to be there: else a CUDA stream is made
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = _counts_on_host


def device() -> torch.device:
    """Where this process computes."""
    return torch.device("cpu") if without_cuda() else torch.device("cuda", torch.cuda.current_device())


def megatron_calls() -> AbstractContextManager[Any]:
    """Enter around every call into Megatron-Core's schedule, data parallelism, and optimizer."""
    return _CudaMeansCpu() if without_cuda() else nullcontext()


class _CudaMeansCpu(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False  # pinning needs a CUDA driver
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # The optimizer sorts parameters by comparing this string with the CUDA names of the dtypes.
            return f"torch.cuda.{func(*args).rsplit('.', 1)[-1]}"
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], "cpu", *args[2:])
        return func(*args, **kwargs)


def _is_cuda(place: object) -> bool:
    return isinstance(place, (str, torch.device)) and str(place).startswith("cuda")


def _counts_on_host(dispatcher: Any, point: str, tokens_per_expert: Any = None) -> Any:
    """What the dispatcher's copy to the host leaves behind: split sizes as numpy arrays."""
    if point == dispatcher.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            splits = getattr(dispatcher, name)
            if isinstance(splits, torch.Tensor):
                setattr(dispatcher, name, splits.numpy())
    return tokens_per_expert


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _no_state(*_args: Any, **_kwargs: Any) -> torch.Tensor:
    return torch.zeros(16, dtype=torch.uint8)


__all__ = ["device", "megatron_calls", "prepare", "prepare_experts", "without_cuda"]
