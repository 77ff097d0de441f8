from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from logparity.errors import ModelError
from logparity.models import check_model_folder


@pytest.fixture
def copy(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "copy"))


def test_a_complete_folder_tells_its_limits(tiny_folder: Path) -> None:
    model = check_model_folder(tiny_folder)
    assert (model.architecture, model.vocab_size, model.context_length) == ("LlamaForCausalLM", 259, 128)
    assert model.stop_token_ids == (2,)


def test_generation_config_decides_the_stop_ids(copy: Path) -> None:
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert check_model_folder(copy).stop_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json"], "has no config.json"),
        (["model.safetensors"], "has no weights: expected one of model.safetensors"),
        (["tokenizer.json"], "has no tokenizer: expected one of tokenizer.json"),
    ],
)
def test_what_is_missing_is_named_in_one_line(copy: Path, files: list[str], message: str) -> None:
    for file in files:
        (copy / file).unlink()
    with pytest.raises(ModelError, match=message) as caught:
        check_model_folder(copy)
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)


def test_a_missing_folder_and_a_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        check_model_folder(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is a file"):
        check_model_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ("[]", "expected a JSON object, got list"), ("{}", "no vocab_size")],
)
def test_a_broken_config_is_named(copy: Path, content: str, message: str) -> None:
    (copy / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        check_model_folder(copy)
