"""A model's chunks on this rank: built, loaded from a Hugging Face folder, and wrapped for precision and gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from logparity.actors.megatron import cpu
from logparity.actors.megatron.family import Family
from logparity.actors.megatron.groups import ParallelGroups
from logparity.actors.megatron.naming import placed_parameters
from logparity.actors.megatron.rotary import FolderRotary
from logparity.actors.megatron.rules import Replicated, Split
from logparity.actors.megatron.spec import block_spec
from logparity.actors.megatron.value_head import ValueHead
from logparity.actors.megatron.vocabulary import Vocabulary
from logparity.parallel.vocab import VocabShard


@dataclass(frozen=True, slots=True)
class MegatronModel:
    """The part of a model that this rank holds.

    Args:
        family: what it was built from.
        config: its configuration in Megatron-Core's terms.
        groups: who holds the rest.
        chunks: what the schedule runs, one per virtual stage; wrapped.
        bare: the same without wrappers.
        vocabulary: which columns of the logits are here.
        value_head: whether it ends in values rather than logits.
    """

    family: Family
    config: TransformerConfig
    groups: ParallelGroups
    chunks: list[torch.nn.Module]
    bare: list[GPTModel]
    vocabulary: Vocabulary
    value_head: bool = False


def build_model(
    family: Family,
    groups: ParallelGroups,
    dtype: torch.dtype,
    *,
    trained: bool,
    distributed_optimizer: bool = False,
    recompute_layers: bool = False,
    overlap_experts: bool = False,
    value_head: bool = False,
    vocab_multiple: int = 128,
) -> MegatronModel:
    """Build this rank's chunks with uninitialised weights.

    Args:
        family: what the folder holds.
        groups: this rank's groups.
        dtype: compute dtype; below float32 chunks are wrapped in `Float16Module`.
        trained: wrap for gradients, which are kept and summed in float32.
        distributed_optimizer: gradients are reduce-scattered for an optimizer sharded over data-parallel ranks.
        recompute_layers: recompute each layer in the backward.
        overlap_experts: run the combined 1F1B schedule.
        value_head: end in a value head.
        vocab_multiple: each tensor-parallel rank holds a multiple of this many vocabulary columns.

    Returns:
        The model.

    Raises:
        InputError: the model does not divide into the parallel sizes.
    """
    family.check(groups.sizes)
    if family.experts:
        cpu.prepare_experts()
    config = family.config(groups.sizes, dtype, recompute_layers=recompute_layers, overlap_experts=overlap_experts)
    padded = family.padded_vocab(groups.sizes.tensor, vocab_multiple)
    with cpu.megatron_calls():
        bare = [
            _chunk(family, groups, config, chunk, padded, value_head) for chunk in range(groups.sizes.virtual_pipeline)
        ]
        chunks: list[torch.nn.Module] = [_precision(model, config) for model in bare]
        if trained:
            chunks = [_with_gradients(m, config, groups, i, distributed_optimizer) for i, m in enumerate(chunks)]
    share = padded // groups.sizes.tensor
    start = groups.tp.rank() * share
    shard = VocabShard(start, start + share, groups.tp) if groups.sizes.tensor > 1 else None
    vocabulary = Vocabulary(shard, family.folder.vocab_size, padded)
    built = MegatronModel(family, config, groups, chunks, bare, vocabulary, value_head)
    _mark_shards(built)
    return built


def _chunk(
    family: Family, groups: ParallelGroups, config: TransformerConfig, chunk: int, padded: int, value_head: bool
) -> GPTModel:
    first, last = groups.holds_first_layer(chunk), groups.holds_head(chunk)
    model = GPTModel(
        config,
        block_spec(config, groups, chunk),
        vocab_size=padded,
        max_sequence_length=family.folder.context_length or 0,
        pre_process=first,
        post_process=last,
        parallel_output=True,
        share_embeddings_and_output_weights=family.tied and not value_head,
        position_embedding_type="rope",
        pg_collection=groups.collection,
        vp_stage=chunk if groups.sizes.virtual_pipeline > 1 else None,
    )
    model.rotary_pos_emb = FolderRotary(
        family.inv_freq,
        kv_channels=family.head_size,
        rotary_percent=1.0,
        use_cpu_initialization=config.use_cpu_initialization,
        cp_group=groups.cp,
    )
    if value_head and last:
        model.output_layer = ValueHead(config, groups.tp)
    return model if cpu.without_cuda() else model.cuda()


def _mark_shards(model: MegatronModel) -> None:
    """Say which parameters are shards: the norm of the gradient counts the others on one rank only.

    Megatron-Core marks them while it initialises them, which is left out here.
    """
    for placed in placed_parameters(model):
        if not isinstance(placed.rule, Replicated):
            placed.parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
            placed.parameter.partition_dim = placed.rule.dim if isinstance(placed.rule, Split) else 0  # type: ignore[attr-defined]
            placed.parameter.partition_stride = 1  # type: ignore[attr-defined]


def _precision(model: GPTModel, config: TransformerConfig) -> torch.nn.Module:
    wrapped: torch.nn.Module = Float16Module(config, model) if config.bf16 or config.fp16 else model
    return wrapped


def _with_gradients(
    model: torch.nn.Module, config: TransformerConfig, groups: ParallelGroups, chunk: int, distributed: bool
) -> DistributedDataParallel:
    # A bad gradient is the optimizer's business, which skips the step and names the tensor; the check here would raise.
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=distributed,
        check_for_nan_in_grad=False,
    )
    return DistributedDataParallel(
        config, settings, model, disable_bucketing=chunk > 0, pg_collection=groups.collection
    )


__all__ = ["MegatronModel", "build_model"]
