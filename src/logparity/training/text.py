"""Between text and token ids: the only place where the training loop touches a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logparity.errors import ModelError
from logparity.records import IntArray


class Codec:
    """A tokenizer with its chat template and stop tokens.

    Args:
        model_folder: local Hugging Face folder.

    Raises:
        ModelError: the folder's tokenizer cannot be loaded.
    """

    def __init__(self, model_folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model_folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ModelError(f"Model folder {model_folder}: its tokenizer cannot be loaded ({error}).") from error

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's end-of-sequence id, if it has one."""
        end = self._tokenizer.eos_token_id
        return () if end is None else (int(end),)

    def encode(self, prompt: str) -> IntArray:
        """Ids of a user prompt, int64 ``[P]``, ready for the response: through the chat template where there is one."""
        if self._tokenizer.chat_template is None:
            ids = self._tokenizer(prompt)["input_ids"]
        else:
            chat = [{"role": "user", "content": prompt}]
            ids = self._tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=True
            )["input_ids"]
        return np.asarray(ids, dtype=np.int64)

    def encode_answer(self, answer: str) -> IntArray:
        """Ids of a response that says ``answer`` and stops, int64 ``[R]``."""
        ids = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        return np.asarray([*ids, *self.stop_token_ids], dtype=np.int64)

    def decode(self, ids: IntArray) -> str:
        """Text of a response, special tokens left out."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def token_texts(self, ids: IntArray) -> Sequence[str]:
        """Text of each token by itself, special tokens shown."""
        return [str(self._tokenizer.decode([token])) for token in ids.tolist()]
