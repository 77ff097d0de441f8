"""Which modules a layer is made of: Transformer Engine's where it is installed, else this package's own."""

from __future__ import annotations

from importlib.util import find_spec

from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

from logparity.actors.megatron import cpu
from logparity.actors.megatron.attention import SdpaAttention
from logparity.actors.megatron.groups import ParallelGroups
from logparity.actors.megatron.norm import RMSNorm
from logparity.layout.context_parallel import ContextLayout


def use_transformer_engine(groups: ParallelGroups) -> bool:
    """Whether layers are Transformer Engine's: on CUDA, where installed, and with its own token layout."""
    own_layout = groups.sizes.context == 1 or groups.sizes.context_layout is ContextLayout.ZIGZAG
    return not cpu.without_cuda() and own_layout and find_spec("transformer_engine") is not None


def block_spec(config: TransformerConfig, groups: ParallelGroups, chunk: int) -> TransformerBlockSubmodules:
    """The layers of one model chunk.

    Args:
        config: the model's configuration.
        groups: this rank's groups.
        chunk: which model chunk of this rank.

    Returns:
        The spec for `GPTModel`.
    """
    stage = chunk if groups.sizes.virtual_pipeline > 1 else None
    count = get_num_layers_to_build(config, vp_stage=stage, pp_rank=groups.pp.rank())
    options = {"num_experts": config.num_moe_experts, "moe_grouped_gemm": False, "qk_layernorm": config.qk_layernorm}
    if use_transformer_engine(groups):
        from megatron.core.extensions.transformer_engine import TENorm

        layer = get_gpt_layer_with_transformer_engine_spec(**options)
        return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=TENorm)
    layer = get_gpt_layer_local_spec(**options, normalization=config.normalization)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = SdpaAttention
    attention.q_layernorm = attention.k_layernorm = RMSNorm if config.qk_layernorm else IdentityOp
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=RMSNorm)


__all__ = ["block_spec", "use_transformer_engine"]
