from __future__ import annotations

from pathlib import Path

import pytest
import torch

from logparity.errors import InputError
from logparity.models.loading import load_causal_lm
from logparity.models.weights import copy_weights, named_weights

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return load_causal_lm(folder, dtype=dtype, device=CPU)


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("kind", ["tiny_folder", "untied_folder"])
def test_weights_travel_between_models(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    source, target = load(folder), load(folder)
    with torch.no_grad():
        for weight in source.parameters():
            weight.add_(1)
    names = [name for name, _ in named_weights(source)]
    assert len(names) == len(set(names)) == len(list(source.parameters()))
    copy_weights(target, named_weights(source))
    assert same(source, target)


def test_a_tied_weight_may_come_under_any_of_its_names(tiny_folder: Path) -> None:
    source, target = load(tiny_folder), load(tiny_folder)
    with torch.no_grad():
        source.get_input_embeddings().weight.add_(1)
    both = dict(source.state_dict())
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(both)
    for drop in ("lm_head.weight", "model.embed_tokens.weight", None):
        copy_weights(target, ((n, t) for n, t in both.items() if n != drop))
        assert same(source, target)


def test_wrong_names_and_shapes_change_nothing(untied_folder: Path) -> None:
    model, before = load(untied_folder), load(untied_folder)
    weights = {name: tensor.detach() + 1 for name, tensor in named_weights(model)}
    missing = {n: t for n, t in weights.items() if n != "lm_head.weight"}
    reshaped = {n: t[:-1] if n == "lm_head.weight" else t for n, t in weights.items()}
    for bad, message in [
        (missing, r"0 unknown , 1 missing \(lm_head.weight\)"),
        (weights | {"extra": torch.zeros(1)}, r"1 unknown \(extra\)"),
        (reshaped, r"lm_head.weight expected shape \(259, 48\), got \(258, 48\)"),
    ]:
        with pytest.raises(InputError, match=message):
            copy_weights(model, bad.items())
    with pytest.raises(InputError, match="given twice"):
        copy_weights(model, [*weights.items(), *weights.items()])
    assert same(model, before)


def test_rotary_frequencies_stay_in_float32_at_every_dtype(tiny_folder: Path) -> None:
    narrow, wide = load(tiny_folder, torch.bfloat16), load(tiny_folder)
    assert torch.equal(narrow.model.rotary_emb.inv_freq, wide.model.rotary_emb.inv_freq)
