"""Bad input to the operation from hidden states: what was expected, what came, and the fix."""

from __future__ import annotations

import pytest
import torch

from logparity.errors import InputError, SupportError
from logparity.ops import Support, linear_token_log_probs
from logparity.parallel import VocabShard

HIDDEN, WEIGHT = torch.zeros(3, 4), torch.zeros(10, 4)
TARGETS = torch.tensor([1, 2, 3])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"hidden": torch.zeros(3, 4, dtype=torch.int64)},
            r"hidden: expected a floating-point tensor .* got torch.int64",
        ),
        ({"weight": torch.zeros(10, 5)}, r"weight: expected \[V_local, H\] with H = 4"),
        (
            {"weight": torch.zeros(10, 4, dtype=torch.bfloat16)},
            r"weight: expected torch.float32, .* got torch.bfloat16",
        ),
        ({"bias": torch.zeros(9)}, r"bias: expected \[10\], one per row of weight, got \[9\]"),
        ({"logits_dtype": torch.bfloat16}, r"logits_dtype: expected None, torch.float32"),
        ({"targets": torch.tensor([1, 2])}, r"targets: expected shape \[3\]"),
        ({"targets": torch.tensor([1, 2, 10])}, r"targets: expected ids in \[0, 10\).*got 10 at position 2"),
        ({"targets": torch.tensor([1.0, 2.0, 3.0])}, r"targets: expected an int64 tensor"),
        ({"temperature": 0.0}, r"temperature: expected a finite number > 0, got 0.0"),
        ({"chunk_size": 0}, r"chunk_size: expected 'auto' or a number of rows >= 1, got 0"),
        ({"entropy": "yes"}, r"entropy: expected 'none', 'value', or 'grad'"),
        ({"rows": torch.tensor([0, 1, 1])}, r"rows: expected every row once, got row 1 again"),
        ({"shard": VocabShard(0, 12)}, r"weight: expected 12 vocabulary columns"),
        ({"impl": "fast"}, r"impl: expected one of"),
        ({"valid_vocab_size": 11}, r"valid_vocab_size: expected 1 to 10"),
    ],
)
def test_bad_arguments(changed: dict, message: str) -> None:
    arguments = {"hidden": HIDDEN, "weight": WEIGHT, "targets": TARGETS} | changed
    with pytest.raises(InputError, match=message):
        linear_token_log_probs(**arguments)


def test_a_target_outside_its_support_is_named() -> None:
    with pytest.raises(SupportError, match=r"support of row 1: expected its target 2 among"):
        linear_token_log_probs(HIDDEN, WEIGHT, TARGETS, support=Support.from_lists([[1], [5, 6], [3]]))
