"""The recorded inputs and outputs of the real verl and TRL, as flat tensors."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logparity.losses import TokenTensors


@cache
def golden() -> dict[str, Any]:
    """Everything in golden.json."""
    return json.loads((Path(__file__).parent / "golden" / "golden.json").read_text())


def matrix(values: Any) -> Tensor:
    """A recorded matrix, flattened row by row."""
    return torch.tensor(values, dtype=torch.float64).flatten()


def flat(name: str) -> Tensor:
    """A recorded input, flattened row by row."""
    return matrix(golden()["inputs"][name])


def mask() -> Tensor:
    """The recorded response mask as bool."""
    return flat("mask").bool()


def sequence_ids() -> Tensor:
    """The row each flattened token came from."""
    rows, columns = len(golden()["lengths"]), len(golden()["inputs"]["mask"][0])
    return torch.arange(rows).repeat_interleave(columns)


def tokens(advantages: str = "advantages") -> TokenTensors:
    """The recorded batch, with a gradient on its log-probs."""
    return TokenTensors(
        log_probs=flat("log_probs").requires_grad_(),
        mask=mask(),
        sequence_ids=sequence_ids(),
        num_sequences=len(golden()["lengths"]),
        old_log_probs=flat("old_log_probs"),
        advantages=flat(advantages),
        ref_log_probs=flat("ref_log_probs"),
        rollout_log_probs=flat("rollout_log_probs"),
    )
