"""A causal language model whose weights are gathered layer by layer, and whose forward ends in log-probs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from logparity.actors.forward import response_log_probs
from logparity.actors.fsdp.mesh import DATA, TENSOR
from logparity.actors.fsdp.tensor_parallel import share_matrices, summed_weights
from logparity.layout.padded import PaddedBatch
from logparity.losses.base import EntropyMode, LogitPrecision
from logparity.models.loading import head_options, load_causal_lm, recompute_layers
from logparity.parallel.vocab import VocabShard

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Scorer(nn.Module):
    """From token ids to log-probs in one forward.

    Embedding, final norm, and LM head belong to this module's own group of weights: its hooks gather them before the
    first and free them after the last use, tied or not.

    Args:
        model: the causal language model.
        shard: the vocabulary's columns that its LM head computes here; None for all.
    """

    def __init__(self, model: PreTrainedModel, shard: VocabShard | None = None) -> None:
        super().__init__()
        self.model = model
        self._shard = shard
        self._head_options = head_options(model.config)

    def forward(
        self,
        batch: PaddedBatch,
        temperature: Tensor,
        entropy: EntropyMode,
        precision: LogitPrecision = LogitPrecision.MODEL,
        recompute: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs and entropy of the batch's wanted tokens; see `response_log_probs`."""
        return response_log_probs(
            self.model,
            batch,
            temperature,
            entropy=entropy,
            precision=precision,
            head_options=self._head_options,
            recompute=recompute,
            shard=self._shard,
        )


class ShardedModel:
    """A model folder's weights, one shard on every rank of the mesh.

    A trained model holds float32 shards, computes with their cast to ``dtype``, and sums float32 gradients over ranks.
    A frozen one holds shards in ``dtype``.

    Args:
        folder: a local Hugging Face folder that every rank sees.
        mesh: as of `open_mesh`.
        dtype: compute dtype.
        trained: whether gradients are wanted.
        recompute: recompute each layer in the backward.

    Memory:
        4 bytes per weight and rank while loading on the CPU; then the shard, and the weights of the layer at work.
    """

    def __init__(
        self, folder: str | Path, mesh: DeviceMesh, dtype: torch.dtype, *, trained: bool, recompute: bool = False
    ) -> None:
        loaded = torch.float32 if trained else dtype
        self.model = load_causal_lm(folder, dtype=loaded, device=torch.device("cpu"))
        self.model.requires_grad_(trained)
        if recompute:
            recompute_layers(self.model)
        self.summed: frozenset[str] = frozenset()
        shard = None
        if mesh[TENSOR].size() > 1:
            self.summed = summed_weights(self.model)
            shard = share_matrices(self.model, mesh[TENSOR])
        self._scorer = Scorer(self.model, shard)
        # Inputs keep their dtype, as in one process: the temperature and the rotary angles are float32 on purpose.
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for layer in decoder_layers(self.model):
            fully_shard(layer, mesh=mesh[DATA], mp_policy=policy)
        fully_shard(self._scorer, mesh=mesh[DATA], mp_policy=policy)
        for module in self._scorer.modules():
            if isinstance(module, FSDPModule):
                # Losses are sums over counts of the whole step: gradients add up over ranks, and are not averaged.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def log_probs(
        self,
        batch: PaddedBatch,
        temperature: Tensor,
        entropy: EntropyMode,
        precision: LogitPrecision = LogitPrecision.MODEL,
        recompute: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs and entropy of the batch's wanted tokens; every rank of the mesh runs one at a time, together."""
        scored: tuple[Tensor, Tensor | None] = self._scorer(batch, temperature, entropy, precision, recompute)
        return scored

    def free(self) -> None:
        """Drop the gathered weights that a forward without backward leaves, which the next step would outdate."""
        assert isinstance(self._scorer, FSDPModule)
        self._scorer.reshard()

    def abandon(self) -> None:
        """Forget a forward whose backward will not run."""
        assert isinstance(self._scorer, FSDPModule)
        if hasattr(self._scorer, "reset_iter_state"):
            self._scorer.reset_iter_state()
        self._scorer.reshard()


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The outermost modules that the family names as indivisible, which are its decoder layers."""
    names = set(model._no_split_modules or ())
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if type(child).__name__ in names:
                found.append(child)
            else:
                visit(child)

    visit(model)
    return found


__all__ = ["Scorer", "ShardedModel", "decoder_layers"]
