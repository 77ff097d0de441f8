"""Wrong arguments get errors that say what was expected, what came, and the fix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from logparity.errors import InputError
from logparity.ops import Support, token_log_probs

NAN, INF = float("nan"), float("inf")


def _call(**changes: Any) -> None:
    arguments = {"logits": torch.randn(3, 129), "targets": torch.tensor([1, 2, 3]), **changes}
    token_log_probs(arguments.pop("logits"), arguments.pop("targets"), **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.ones(3, 129, dtype=torch.int64)}, "logits: expected bfloat16.* got torch.int64"),
        ({"logits": torch.ones(3, 0)}, r"logits: expected \[tokens, vocabulary\]"),
        ({"targets": torch.ones(3)}, "targets: expected an int64 tensor of token ids, got torch.float32"),
        ({"targets": torch.tensor([1, 2])}, r"targets: expected shape \[3\].* got \[2\]"),
        ({"targets": torch.tensor([[1, 2, 3]])}, r"targets: expected shape \[3\].* got \[1, 3\]"),
        ({"targets": torch.tensor([1, 129, 130])}, r"ids in \[0, 129\).* got 129 at position 1 \(2 in all\)"),
        ({"targets": torch.tensor([-1, 2, 3])}, "got -1 at position 0"),
        ({"valid_vocab_size": 3}, r"ids in \[0, 3\).* got 3 at position 2"),
        ({"valid_vocab_size": 130}, "valid_vocab_size: expected 1 to 129"),
        ({"valid_vocab_size": 0}, "valid_vocab_size: expected 1 to 129"),
        ({"temperature": 0.0}, "temperature: expected a finite number > 0, got 0.0. Greedy"),
        ({"temperature": -1.0}, "got -1.0"),
        ({"temperature": NAN}, "got nan"),
        ({"temperature": INF}, "got inf"),
        ({"temperature": torch.tensor([1.0, 0.0, 1.0])}, "got 0.0 at position 1"),
        ({"temperature": torch.tensor([1.0, 1.0, NAN])}, "got nan at position 2"),
        ({"temperature": torch.ones(2)}, r"one per target, shape \[3\], got \[2\]"),
        ({"temperature": torch.ones(3, requires_grad=True)}, "Detach it"),
        ({"entropy": "yes"}, "entropy: expected 'none', 'value', or 'grad', got 'yes'"),
        ({"rows": torch.tensor([0, 1, 3])}, r"rows: expected indices in \[0, 3\), got 3 at position 2"),
        ({"rows": torch.tensor([0, -1, 1])}, "got -1 at position 1"),
        ({"rows": torch.tensor([0, 1, 1])}, "expected every row once, got row 1 again"),
        ({"rows": torch.tensor([0, 1])}, "targets: expected 2, one per entry of rows"),
        ({"rows": torch.tensor([True, False, True])}, r"mask.nonzero\(\)"),
        ({"support": Support.from_lists([[1]])}, "support: expected one row per target \\(3\\), got 1"),
        ({"logit_softcap": 0.0}, "logit_softcap: expected a finite number > 0"),
        ({"logit_scale": NAN}, "logit_scale: expected a finite number > 0"),
        ({"chunk_size": 0}, "chunk_size: expected 'auto' or a number of rows >= 1, got 0"),
        ({"chunk_size": "big"}, "got 'big'"),
        ({"impl": "fast"}, "impl: expected one of auto, reference, chunked, got 'fast'"),
        ({"targets": torch.zeros(3, dtype=torch.int64, device="meta")}, "targets: expected on cpu, .* got meta"),
        ({"temperature": torch.ones(3, device="meta")}, "temperature: expected on cpu, .* got meta"),
        ({"rows": torch.zeros(3, dtype=torch.int64, device="meta")}, "rows: expected on cpu, .* got meta"),
    ],
)
def test_each_says_what_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _call(**changes)


def test_shards_of_one_process_must_be_the_vocabulary() -> None:
    from logparity.errors import ShardError
    from logparity.parallel import VocabShard

    with pytest.raises(ShardError, match="leave a gap: expected the shard of rank 0 to start at column 0"):
        _call(shard=VocabShard(10, 139))
    with pytest.raises(InputError, match="logits: expected 100 vocabulary columns, the width of the shard, got 129"):
        _call(shard=VocabShard(0, 100))
    with pytest.raises(ShardError, match="expected 0 <= start < stop, got start=5, stop=5"):
        VocabShard(5, 5)
