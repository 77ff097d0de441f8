"""Which Hugging Face weights each parameter on this rank is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import Parameter

from logparity.actors.megatron.rules import GatedPair, GroupedHeads, PaddedRows, Replicated, Rule, Split
from logparity.errors import ModelError

if TYPE_CHECKING:
    from logparity.actors.megatron.build import MegatronModel
    from logparity.actors.megatron.family import Family

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Placed:
    """A parameter of this rank.

    Args:
        parameter: the parameter.
        rule: what it is made of.
        expert: whether its other shards lie on the expert's tensor-parallel group, and its siblings on the
            expert-parallel group.
    """

    parameter: Parameter
    rule: Rule
    expert: bool = False


def placed_parameters(model: MegatronModel) -> list[Placed]:
    """Every parameter of this rank with its rule; a tied LM head on another stage than the embedding included.

    Args:
        model: this rank's chunks.

    Returns:
        One entry per parameter, in the order of the chunks.

    Raises:
        ModelError: a parameter has no rule.
    """
    found = []
    for chunk in model.bare:
        for name, parameter in chunk.named_parameters():
            layer = _LAYER.fullmatch(name)
            if layer is None:
                found.append(Placed(parameter, _outer(name, model)))
                continue
            number = chunk.decoder.layers[int(layer[1])].layer_number - 1
            found.append(_in_layer(parameter, f"model.layers.{number}", layer[2], model))
    return found


def _outer(name: str, model: MegatronModel) -> Rule:
    size, padded = model.vocabulary.size, model.vocabulary.padded
    if name == "embedding.word_embeddings.weight":
        return PaddedRows("model.embed_tokens.weight", size, padded)
    if name in ("output_layer.weight", "output_layer.bias") and model.value_head:
        return Replicated(f"score.{name.rsplit('.', 1)[1]}")
    if name == "output_layer.weight":
        return PaddedRows("model.embed_tokens.weight" if model.family.tied else "lm_head.weight", size, padded)
    if name == "decoder.final_layernorm.weight":
        return Replicated("model.norm.weight")
    raise ModelError(f"parameter {name}: no Hugging Face weight is known for it.")


def _in_layer(parameter: Parameter, prefix: str, name: str, model: MegatronModel) -> Placed:
    expert = _EXPERT.fullmatch(name)
    if expert is None:
        return Placed(parameter, _dense(prefix, name, model.family))
    per_rank = model.family.experts // model.groups.sizes.expert
    number = model.groups.ep.rank() * per_rank + int(expert[1])
    return Placed(parameter, _feed_forward(f"{prefix}.mlp.experts.{number}", expert[2]), expert=True)


def _dense(prefix: str, name: str, family: Family) -> Rule:
    attention = f"{prefix}.self_attn"
    norms = {
        "input_layernorm.weight": f"{prefix}.input_layernorm.weight",
        "self_attention.linear_qkv.layer_norm_weight": f"{prefix}.input_layernorm.weight",
        "pre_mlp_layernorm.weight": f"{prefix}.post_attention_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": f"{prefix}.post_attention_layernorm.weight",
        "self_attention.q_layernorm.weight": f"{attention}.q_norm.weight",
        "self_attention.k_layernorm.weight": f"{attention}.k_norm.weight",
        "mlp.router.weight": f"{prefix}.mlp.gate.weight",
    }
    if name in norms:
        return Replicated(norms[name])
    if name == "self_attention.linear_proj.weight":
        return Split(f"{attention}.o_proj.weight", 1)
    if name in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        kind = name.rsplit(".", 1)[1]
        query, key, value = (f"{attention}.{part}_proj.{kind}" for part in "qkv")
        return GroupedHeads(query, key, value, family.groups, family.head_size)
    return _feed_forward(f"{prefix}.mlp", name.removeprefix("mlp."))


def _feed_forward(prefix: str, name: str) -> Rule:
    if name == "linear_fc1.weight":
        return GatedPair(f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight")
    if name == "linear_fc2.weight":
        return Split(f"{prefix}.down_proj.weight", 1)
    raise ModelError(f"parameter {name} under {prefix}: no Hugging Face weight is known for it.")


__all__ = ["Placed", "placed_parameters"]
