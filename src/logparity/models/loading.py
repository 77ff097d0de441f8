"""Loading a model folder for one of the two sides: compute dtype, device, attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from logparity.errors import InputError, ModelError
from logparity.models.folder import check_model_folder
from logparity.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def as_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name such as ``"bfloat16"``."""
    if name not in _DTYPES:
        raise InputError(f"dtype: expected one of {', '.join(_DTYPES)}, got {name!r}.")
    return _DTYPES[name]


def as_device(name: str | torch.device | None) -> torch.device:
    """A device; None picks CUDA where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device: expected for instance 'cpu' or 'cuda:0', got {name!r}.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device: {name} is not here; torch sees {torch.cuda.device_count()} CUDA devices.")
    return device


def load_causal_lm(folder: str | Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Load a causal language model without dropout in one dtype; attention is SDPA where the family supports it.

    Args:
        folder: a local Hugging Face folder.
        dtype: dtype of the weights and of the computation.
        device: where the weights go.

    Returns:
        The model in evaluation mode.

    Raises:
        ModelError: the folder is incomplete or transformers cannot load it.
    """
    checked = check_model_folder(folder)
    try:
        with quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(checked.path, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"model folder {checked.path} cannot be loaded: {_first_line(error)}") from error
    without_dropout(model)
    train_every_embedding(model)
    return model.to(device).eval()


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local model folder."""
    path = check_model_folder(folder).path
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"tokenizer in {path} cannot be loaded: {_first_line(error)}") from error


def without_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to 0: a policy that is scored twice must give the same numbers twice."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "attn_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def train_every_embedding(model: torch.nn.Module) -> None:
    """Let the padding id's embedding have a gradient, which Transformers drops.

    Many models pad with a token that is also real, such as the stop token: a sequence that holds it would be trained on
    a gradient that is not its own. Padding itself gives none, since nothing looks at it.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None


def recompute_layers(model: PreTrainedModel) -> None:
    """Let the backward recompute each layer instead of keeping its activations."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:  # its name in earlier releases of transformers 5
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()  # layers are recomputed in training mode only; dropout is off in both


def head_options(config: Any) -> dict[str, float]:
    """What a model applies to the output of its LM head, as keyword options of the log-prob operation.

    Gemma caps its logits, Granite divides them, Cohere multiplies them; the actor projects hidden states itself and
    must do the same.

    Args:
        config: the model's configuration.

    Returns:
        ``logit_softcap`` and ``logit_scale``, each only where the family has it.
    """
    text = config.get_text_config()
    options: dict[str, float] = {}
    if getattr(text, "final_logit_softcapping", None):
        options["logit_softcap"] = float(text.final_logit_softcapping)
    if getattr(text, "logits_scaling", None):
        options["logit_scale"] = 1.0 / float(text.logits_scaling)
    elif getattr(text, "logit_scale", None):
        options["logit_scale"] = float(text.logit_scale)
    return options


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


__all__ = [
    "as_device",
    "as_dtype",
    "head_options",
    "load_causal_lm",
    "load_tokenizer",
    "recompute_layers",
    "train_every_embedding",
    "without_dropout",
]
