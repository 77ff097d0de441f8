"""Wrong arguments get errors that say what was expected, what came, and the fix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from logparity.errors import InputError, ShardError, SupportError
from logparity.ops import Support, on_policy_token_log_probs, token_log_probs
from logparity.ops.checks import temperature
from logparity.parallel import VocabShard

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
    with pytest.raises(ShardError, match="leave a gap: expected the shard of rank 0 to start at column 0"):
        _call(shard=VocabShard(10, 139))
    with pytest.raises(InputError, match="logits: expected 100 vocabulary columns, the width of the shard, got 129"):
        _call(shard=VocabShard(0, 100))
    with pytest.raises(ShardError, match="expected 0 <= start < stop, got start=5, stop=5"):
        VocabShard(5, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": "hot"}, "temperature: expected a finite number > 0 or a tensor .*, got str 'hot'. Pass"),
        (
            {"temperature": [1.0, 2.0, 1.0]},
            r"temperature: .* got list \[1.0, 2.0, 1.0\]. Pass a float, or torch.tensor",
        ),
        ({"temperature": None}, "temperature: .* got NoneType None"),
        ({"temperature": True}, "temperature: .* got bool True"),
        ({"temperature": torch.tensor([True, True, True])}, "temperature: expected real numbers, got torch.bool"),
        (
            {"temperature": torch.ones(3, dtype=torch.complex64)},
            "temperature: expected real numbers, got torch.complex64",
        ),
        ({"temperature": torch.tensor(0.0)}, "temperature: expected a finite number > 0, got 0.0"),
        ({"logit_softcap": "30"}, "logit_softcap: expected a finite number > 0, .* got str '30'"),
        ({"logit_scale": True}, "logit_scale: expected .* got bool True"),
        ({"valid_vocab_size": "2"}, "valid_vocab_size: expected 1 to 129 .* got str '2'"),
        ({"valid_vocab_size": 2.5}, "valid_vocab_size: expected 1 to 129 .* got float 2.5"),
        ({"valid_vocab_size": True}, "valid_vocab_size: expected 1 to 129 .* got bool True"),
        ({"rows": "a"}, r"rows: expected int64 \[N\] indices, got str 'a'"),
        ({"rows": [0.5, 1.0, 2.0]}, r"rows: expected int64 \[N\] indices, got torch.float32"),
        ({"shard": (0, 3, None)}, r"shard: expected a VocabShard\(start, stop, group\) or None, got tuple"),
        ({"support": [[0]] * 3}, r"support: expected a Support, got list .*Support.from_lists"),
        ({"targets": torch.ones(3, dtype=torch.complex64)}, "targets: expected an int64 tensor .* got torch.complex64"),
        (
            {"logits": torch.zeros(3, 129, dtype=torch.float8_e4m3fn)},
            "logits: expected bfloat16.* got torch.float8_e4m3fn",
        ),
        ({"ignore_index": "none"}, "ignore_index: expected an integer, got str 'none'"),
        ({"validate": "no"}, "validate: expected True, False, or None, got str 'no'"),
        ({"grad_buffer": [0.0]}, r"grad_buffer: expected a tensor like the logits, got list \[0.0\]"),
    ],
)
def test_wrong_types_are_input_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _call(**changes)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn, "float32"])
def test_an_engine_computes_in_a_floating_point_dtype(dtype: Any) -> None:
    with pytest.raises(InputError, match=r"compute_dtype: expected None .* or one of bfloat16"):
        on_policy_token_log_probs(torch.randn(3, 129), torch.tensor([1, 2, 3]), compute_dtype=dtype)


@pytest.mark.parametrize("rows", [[[0.5, 1.7]], [[True]], [["a"]], [1, 2], 5, [[2**70]]])
def test_supports_are_lists_of_integers(rows: Any) -> None:
    with pytest.raises(SupportError, match="support"):
        Support.from_lists(rows)


def test_a_support_is_made_of_tensors() -> None:
    with pytest.raises(
        SupportError, match=r"support offsets: expected a 1-D int64 tensor, got list \[0, 1\]. Build it"
    ):
        Support([0, 1], [2])
    with pytest.raises(SupportError, match=r"support ids: expected a 1-D int64 tensor, got .* of torch.complex64"):
        Support(torch.tensor([0, 1]), torch.ones(1, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3, "tp"), "expected group to be a torch.distributed.ProcessGroup .* got 'tp'"),
        ((0, 2.5), "expected stop to be an integer column, got 2.5"),
        (("0", 3), "expected start to be an integer column, got '0'"),
    ],
)
def test_a_shard_is_made_of_integers_and_a_group(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShardError, match=message):
        VocabShard(*arguments)


def test_one_temperature_may_be_a_tensor_or_of_numpy() -> None:
    logits, targets = torch.randn(3, 129), torch.tensor([1, 2, 3])
    expected = token_log_probs(logits, targets, temperature=0.5).log_probs
    for same in (torch.tensor(0.5), np.float32(0.5), np.float64(0.5), torch.tensor([0.5] * 3, dtype=torch.bfloat16)):
        assert torch.equal(token_log_probs(logits, targets, temperature=same).log_probs, expected)


def test_one_temperature_on_a_device_is_not_read_but_spread_over_the_targets() -> None:
    """The meta device has no values to read: whoever tried to would fail."""
    targets = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    spread = temperature(torch.tensor(0.5, device="meta"), targets, check_values=False)
    assert isinstance(spread, torch.Tensor)
    assert spread.shape == (6,)
    assert spread.dtype == torch.float64
