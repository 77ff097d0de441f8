"""A Hugging Face model folder, checked before anything heavy is imported or read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logparity.errors import ModelError

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a checked folder says about its model.

    Args:
        path: the folder.
        architecture: class name from the config, e.g. ``"LlamaForCausalLM"``; empty where the config names none.
        vocab_size: ``V``.
        context_length: longest sequence in tokens; None where the config states none.
        stop_token_ids: the model's own end-of-sequence ids, in the order the folder lists them.
    """

    path: Path
    architecture: str
    vocab_size: int
    context_length: int | None
    stop_token_ids: tuple[int, ...]


def check_model_folder(path: str | Path) -> ModelFolder:
    """Check that a folder holds a causal language model with weights and tokenizer, without loading it.

    Args:
        path: a local folder as ``save_pretrained`` writes it.

    Returns:
        The folder with the facts that callers check their settings against.

    Raises:
        ModelError: the folder, its config, its weights, or its tokenizer is missing; one line that says which.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise ModelError(f"model folder {folder} {kind}: expected a local Hugging Face folder (save_pretrained).")
    config = _read_json(folder / "config.json")
    _require_any(folder, _WEIGHTS, "weights")
    _require_any(folder, _TOKENIZERS, "tokenizer")
    text = config.get("text_config", config)
    if not isinstance(text.get("vocab_size"), int):
        raise ModelError(f"model folder {folder}: config.json states no vocab_size; is it a language model?")
    architectures = config.get("architectures") or [""]
    context = text.get("max_position_embeddings") or text.get("n_positions")
    return ModelFolder(folder, str(architectures[0]), text["vocab_size"], context, _stop_ids(folder, text))


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ModelError(
            f"model folder {file.parent} has no {file.name}: expected a folder that save_pretrained wrote."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: expected a JSON object, got {type(content).__name__}.")
    return content


def _require_any(folder: Path, names: tuple[str, ...], what: str) -> None:
    if not any((folder / name).is_file() for name in names):
        raise ModelError(f"model folder {folder} has no {what}: expected one of {', '.join(names)}.")


def _stop_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids; generation_config.json wins, as it does for every engine."""
    generation = folder / "generation_config.json"
    ids = _read_json(generation).get("eos_token_id") if generation.is_file() else None
    if ids is None:
        ids = config.get("eos_token_id")
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)


__all__ = ["ModelFolder", "check_model_folder"]
