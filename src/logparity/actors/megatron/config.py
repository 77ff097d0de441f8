"""What a user chooses about the Megatron actor."""

from __future__ import annotations

from dataclasses import dataclass, field

from logparity.actors.megatron.optimizer import DecayConfig
from logparity.actors.sharing import MicroBatchSize
from logparity.errors import InputError

_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronConfig:
    """Settings of a `MegatronActor`; the parallel sizes come with its groups.

    Args:
        dtype: compute dtype; masters, gradients, and optimizer state are float32 in any case.
        micro_batch: how many tokens or sequences are computed together.
        packed: sequences lie one after another in a row (thd) rather than padded to the longest (bshd).
        distributed_optimizer: share masters and moments over the ranks that hold the same weights.
        decay: how the learning rate falls after warm-up.
        recompute_loss: compute the loss again in the backward rather than keep its per-token tensors.
        recompute_layers: compute each layer again in the backward rather than keep its activations.
        overlap_experts: combined 1F1B: hide the experts' communication behind another micro-batch; CUDA only.
        initial_loss_scale: first factor on an fp16 loss.
        vocab_multiple: each tensor-parallel rank holds a multiple of this many vocabulary columns.

    Raises:
        InputError: an unknown dtype or a number outside its range.
    """

    dtype: str = "bfloat16"
    micro_batch: MicroBatchSize = field(default_factory=lambda: MicroBatchSize(tokens=4096))
    packed: bool = True
    distributed_optimizer: bool = False
    decay: DecayConfig = field(default_factory=DecayConfig)
    recompute_loss: bool = False
    recompute_layers: bool = False
    overlap_experts: bool = False
    initial_loss_scale: float = 2.0**16
    vocab_multiple: int = 128

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InputError(f"dtype: expected one of {', '.join(_DTYPES)}, got {self.dtype!r}.")
        if self.vocab_multiple < 1:
            raise InputError(f"vocab_multiple: expected an integer >= 1, got {self.vocab_multiple}.")
        if not 1 <= self.initial_loss_scale < float("inf"):
            raise InputError(f"initial_loss_scale: expected a finite number >= 1, got {self.initial_loss_scale}.")


__all__ = ["MegatronConfig"]
