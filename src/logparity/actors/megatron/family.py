"""What a Hugging Face folder says about its model, in Megatron-Core's terms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from logparity.actors.megatron import cpu
from logparity.actors.megatron.groups import ParallelSizes
from logparity.errors import InputError, ModelError
from logparity.models.folder import ModelFolder, check_model_folder

_FAMILIES = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {"add_qkv_bias": True},
    "Qwen3ForCausalLM": {"qk_layernorm": True},
    "Qwen3MoeForCausalLM": {"qk_layernorm": True},
}
"""Architectures by the name their config gives them, with what sets each apart from Llama."""

_ROTARY = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Family:
    """A supported model.

    Args:
        folder: the checked model folder.
        shape: sizes and switches as `TransformerConfig` takes them, without anything parallel.
        heads: query heads.
        groups: key heads.
        head_size: width of a head.
        experts: experts per layer; 0 for a dense model.
        tied: whether the LM head is the embedding.
        inv_freq: rotary frequencies, float32 ``[head_size / 2]``.
    """

    folder: ModelFolder
    shape: dict[str, Any]
    heads: int
    groups: int
    head_size: int
    experts: int
    tied: bool
    inv_freq: Tensor

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.shape["num_layers"])

    def padded_vocab(self, tensor: int, multiple: int) -> int:
        """Vocabulary size padded so that every tensor-parallel rank holds a multiple of ``multiple`` columns."""
        step = tensor * multiple
        return -(-self.folder.vocab_size // step) * step

    def check(self, sizes: ParallelSizes) -> None:
        """Refuse parallel sizes that the model does not divide into.

        Args:
            sizes: parallel sizes.

        Raises:
            InputError: heads, layers, or experts do not divide; says which.
        """
        stages = sizes.pipeline * sizes.virtual_pipeline
        feed_forward = ("expert_tensor", sizes.expert_tensor) if self.experts else ("tensor", sizes.tensor)
        for what, count, name, size in (
            ("attention heads", self.heads, "tensor", sizes.tensor),
            ("key-value heads", self.groups, "tensor", sizes.tensor),
            ("layers", self.layers, "pipeline * virtual_pipeline", stages),
            ("experts", self.experts, "expert", sizes.expert),
            ("columns of the feed-forward matrices", int(self.shape["ffn_hidden_size"]), *feed_forward),
        ):
            if count % size:
                raise InputError(
                    f"{name}: expected a divisor of the model's {count} {what}, got {size}. Choose a size that "
                    "divides it."
                )
        if sizes.expert > 1 and not self.experts:
            raise InputError(f"expert: expected 1 for a dense model, got {sizes.expert}.")

    def config(
        self, sizes: ParallelSizes, dtype: torch.dtype, *, recompute_layers: bool = False, overlap_experts: bool = False
    ) -> TransformerConfig:
        """The model's configuration in Megatron-Core's terms.

        Args:
            sizes: parallel sizes.
            dtype: compute dtype.
            recompute_layers: recompute each layer in the backward.
            overlap_experts: run the combined 1F1B schedule.

        Returns:
            The configuration; dropout is 0 and no fusion is asked for that needs a compiled extension.
        """
        recompute: dict[str, Any] = {}
        if recompute_layers:
            recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        return TransformerConfig(
            **self.shape,
            **recompute,
            moe_token_dispatcher_type="alltoall",  # the only one that takes sequences of varying length
            hidden_dropout=0.0,
            attention_dropout=0.0,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            bf16=dtype is torch.bfloat16,
            fp16=dtype is torch.float16,
            use_cpu_initialization=cpu.without_cuda(),
            perform_initialization=False,
            attention_softmax_in_fp32=True,
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
            persist_layer_norm=False,
            gradient_accumulation_fusion=False,
            apply_rope_fusion=False,
            cuda_graph_scope=[],
            overlap_moe_expert_parallel_comm=overlap_experts,
            tensor_model_parallel_size=sizes.tensor,
            pipeline_model_parallel_size=sizes.pipeline,
            virtual_pipeline_model_parallel_size=sizes.virtual_pipeline if sizes.virtual_pipeline > 1 else None,
            context_parallel_size=sizes.context,
            expert_model_parallel_size=sizes.expert,
            expert_tensor_parallel_size=sizes.expert_tensor,
            sequence_parallel=sizes.sequence_parallel,
            # Micro-batches differ in length, so shapes are exchanged before each activation. Not when interleaved:
            # there two stages send both ways at once, and Megatron-Core mixes the two shapes (or, batched, the two
            # tensors) up; those micro-batches are made equally long.
            variable_seq_lengths=sizes.pipeline > 1 and sizes.virtual_pipeline == 1,
            batch_p2p_comm=sizes.virtual_pipeline == 1 and not cpu.without_cuda(),
            deallocate_pipeline_outputs=sizes.pipeline > 1,
            # Losses divide by counts over the whole step themselves: gradients are to be summed, not averaged.
            calculate_per_token_loss=True,
        )


def read_family(path: str | Path) -> Family:
    """Read a model folder's configuration.

    Args:
        path: a local Hugging Face folder.

    Returns:
        The model in Megatron-Core's terms.

    Raises:
        ModelError: the folder is incomplete, or its model is of a family or has a feature that is not supported.
    """
    folder = check_model_folder(path)
    if folder.architecture not in _FAMILIES:
        raise ModelError(
            f"model folder {folder.path}: the Megatron actor supports {', '.join(_FAMILIES)}, got "
            f"{folder.architecture or 'no architecture'}. Use the Transformers actor for others."
        )
    config = AutoConfig.from_pretrained(folder.path, local_files_only=True)
    _refuse_features(config, folder)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    experts = getattr(config, "num_experts", 0) or 0
    shape = {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_key_value_heads,
        "kv_channels": head_size,
        "ffn_hidden_size": config.moe_intermediate_size if experts else config.intermediate_size,
        "normalization": "RMSNorm",
        "layernorm_epsilon": config.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": False,
        **_FAMILIES[folder.architecture],
        **(_experts(config) if experts else {}),
    }
    return Family(
        folder=folder,
        shape=shape,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        head_size=head_size,
        experts=experts,
        tied=bool(config.tie_word_embeddings),
        inv_freq=_frequencies(config, folder, head_size),
    )


def _experts(config: Any) -> dict[str, Any]:
    return {
        "num_moe_experts": config.num_experts,
        "moe_ffn_hidden_size": config.moe_intermediate_size,
        "moe_router_topk": config.num_experts_per_tok,
        # Normalised top-k probabilities are the softmax over the top-k logits.
        "moe_router_pre_softmax": not config.norm_topk_prob,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_grouped_gemm": False,
    }


def _refuse_features(config: Any, folder: ModelFolder) -> None:
    refused = {
        "attention_bias=True": folder.architecture != "Qwen2ForCausalLM" and getattr(config, "attention_bias", False),
        "mlp_bias=True": getattr(config, "mlp_bias", False),
        "use_sliding_window=True": getattr(config, "use_sliding_window", False),
        f"hidden_act={config.hidden_act!r}": config.hidden_act != "silu",
        "dense layers between experts": bool(getattr(config, "mlp_only_layers", None))
        or getattr(config, "decoder_sparse_step", 1) != 1,
    }
    found = [name for name, present in refused.items() if present]
    if found:
        raise ModelError(
            f"model folder {folder.path}: the Megatron actor does not support {', '.join(found)}. "
            "Use the Transformers actor."
        )


def _frequencies(config: Any, folder: ModelFolder, head_size: int) -> Tensor:
    rotary = config.rope_parameters
    kind = rotary.get("rope_type", "default")
    if kind not in _ROTARY:
        raise ModelError(
            f"model folder {folder.path}: rope_type expected one of {', '.join(_ROTARY)}, got {kind!r}. "
            "Use the Transformers actor."
        )
    if kind == "default":
        return torch.as_tensor(
            1.0 / (rotary["rope_theta"] ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size))
        )
    frequencies: Tensor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))[0]
    return frequencies.float()


__all__ = ["Family", "read_family"]
