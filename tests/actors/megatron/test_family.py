"""Which model folders are taken, and what is said of those that are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from logparity.actors.megatron.family import read_family
from logparity.actors.megatron.groups import ParallelSizes
from logparity.actors.megatron.rules import GatedPair, GroupedHeads, PaddedRows, Replicated, Rule, Split
from logparity.actors.megatron.weights import WeightFiles
from logparity.errors import InputError, ModelError


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_rotary_frequencies_are_those_of_transformers(families: dict[str, Path], family: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(families[family], dtype=torch.float32)
    assert torch.equal(read_family(families[family]).inv_freq, model.model.rotary_emb.inv_freq)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            "supports LlamaForCausalLM, Qwen2ForCausalLM, .*got GemmaForCausalLM",
        ),
        ({"attention_bias": True}, "does not support attention_bias=True"),
        ({"mlp_bias": True}, "does not support mlp_bias=True"),
        ({"hidden_act": "gelu"}, "does not support hidden_act='gelu'"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
            "rope_type expected one of .*'yarn'",
        ),
    ],
)
def test_what_is_not_supported_is_said(
    families: dict[str, Path], tmp_path: Path, change: dict[str, object], message: str
) -> None:
    for file in families["llama"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message):
        read_family(tmp_path)


def test_missing_weights_are_named(families: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected model\.safetensors or"):
        WeightFiles(tmp_path)
    with pytest.raises(ModelError, match=r"has no weight model\.absent"):
        WeightFiles(families["llama"]).read("model.absent")
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match="cannot be read"):
        WeightFiles(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParallelSizes(tensor=0), "tensor: expected a parallel size >= 1, got 0"),
        (lambda: ParallelSizes(virtual_pipeline=2), "Interleaving needs pipeline >= 2"),
        (lambda: ParallelSizes(sequence_parallel=True), "expected tensor >= 2"),
        (lambda: ParallelSizes(tensor=2, expert=2), "needs sequence_parallel=True"),
        (lambda: ParallelSizes(tensor=2, context=2).data(6), r"expected a multiple of .* = 4, got 6"),
        (lambda: ParallelSizes(expert=4).data(6), "expected a divisor of the 6 ranks"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_the_vocabulary_is_padded_for_its_shards(families: dict[str, Path]) -> None:
    family = read_family(families["llama"])
    assert family.folder.vocab_size == 259
    assert [family.padded_vocab(tensor, 128) for tensor in (1, 2, 4)] == [384, 512, 512]


RULES: list[Rule] = [
    Replicated("a"),
    Split("a", 0),
    Split("a", 1),
    PaddedRows("a", 24, 32),
    GatedPair("a", "b"),
    GroupedHeads("q", "k", "v", groups=4, head_size=3),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{type(rule).__name__}")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_shards_join_to_the_weights_they_were_cut_from(rule: Rule, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(24 if name in "abq" else 12, 8, generator=generator) for name in rule.names}
    shards = [rule.shard(weights.__getitem__, rank, size) for rank in range(size)]
    joined = rule.join(shards)
    assert joined.keys() == weights.keys()
    assert all(torch.equal(joined[name], weights[name]) for name in weights)
    if size > 1 and not isinstance(rule, Replicated):
        assert sum(shard.numel() for shard in shards) < 2 * sum(weight.numel() for weight in weights.values())


def test_a_rank_holds_whole_groups_of_heads() -> None:
    """Two key heads of size 1, two query heads each: rank 0 computes with q0, q1, k0, v0."""
    weights = {
        "q": torch.arange(4.0)[:, None],
        "k": torch.tensor([[10.0], [11.0]]),
        "v": torch.tensor([[20.0], [21.0]]),
    }
    rule = GroupedHeads("q", "k", "v", groups=2, head_size=1)
    assert rule.shard(weights.__getitem__, 0, 2).flatten().tolist() == [0, 1, 10, 20]
    assert rule.shard(weights.__getitem__, 1, 2).flatten().tolist() == [2, 3, 11, 21]
