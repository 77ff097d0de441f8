"""Scores over vocabulary shards: the same bits on every rank and at every TP size, one collective, shared errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from logparity.errors import InputError, ShardError, SupportError
from logparity.ops import Support, on_policy_token_log_probs, token_log_probs
from logparity.parallel import VocabShard
from tests.support.collectives import CountCollectives
from tests.support.logits import hard_rows, random_rows
from tests.support.spawn import spawn
from tests.support.tolerance import assert_same_bits

VOCAB, VALID = 9 * 1024 + 500, 9 * 1024 + 300
ALIGNED = {2: [0, 4096, VOCAB], 4: [0, 1024, 3072, 8192, VOCAB]}
UNEVEN = [0, 100, 5000, VOCAB]
Result = dict[str, Any]


def _cases() -> dict[str, dict[str, Any]]:
    targets = _problem(torch.bfloat16)[1]
    support = Support.from_lists([[0, VALID - 1, int(t), int(t) * 31 % VALID] for t in targets])
    return {
        "plain": {},
        "everything": {"entropy": "grad", "temperature": torch.linspace(0.4, 1.7, 8), "support": support},
        "capped rows": {"entropy": "grad", "logit_softcap": 20.0, "logit_scale": 1.5, "rows": [6, 1, 3, 2, 0, 5, 4, 7]},
        "ignored": {"ignore_index": int(targets[3]), "temperature": 0.7, "entropy": "value"},
        "chunked by 1": {"chunk_size": 1},
    }


def _problem(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    logits, targets = hard_rows(VOCAB, dtype)
    targets[:4] = torch.tensor([0, VALID - 1, 1024, 4095])
    targets %= VALID
    return logits, targets


def _run(logits: Tensor, targets: Tensor, shard: VocabShard | None, options: dict[str, Any]) -> Result:
    leaf = logits.clone().requires_grad_()
    scores = token_log_probs(leaf, targets, shard=shard, valid_vocab_size=VALID, **options)
    weight = torch.linspace(-1, 2, 8)
    loss = sum((weight * score).sum() for score in scores if score is not None and score.requires_grad)
    loss.backward()
    return {**scores._asdict(), "gradient": leaf.grad}


@pytest.mark.distributed
def test_shards_give_the_bits_of_one_process() -> None:
    results = spawn(_every_layout, 4)
    for dtype in (torch.bfloat16, torch.float32):
        logits, targets = _problem(dtype)
        for case, options in _cases().items():
            expected = _run(logits, targets, None, options)
            for size in (2, 4):
                parts = [results[rank][dtype, case, size] for rank in range(size)]
                _assert_scores_same(parts, expected)
                assert_same_bits(torch.cat([part["gradient"] for part in parts], 1), expected["gradient"])
            parts = [results[rank][dtype, case, 3] for rank in range(3)]
            _assert_near(parts, expected)


def _every_layout(rank: int, size: int) -> Result:
    results: Result = {}
    groups = {count: dist.new_group(list(range(count))) for count in (2, 3, 4)}
    for count, group in groups.items():
        if rank >= count:
            continue
        edges = ALIGNED.get(count, UNEVEN)
        start, stop = edges[rank], edges[rank + 1]
        for dtype in (torch.bfloat16, torch.float32):
            logits, targets = _problem(dtype)
            for case, options in _cases().items():
                # A new shard each time: bounds are remembered by group, not by object.
                shard = VocabShard(start, stop, group)
                results[dtype, case, count] = _run(logits[:, start:stop].contiguous(), targets, shard, options)
    return results


def _assert_scores_same(parts: list[Result], expected: Result) -> None:
    for part in parts:
        for name in ("log_probs", "entropy", "support_log_probs"):
            if expected[name] is None:
                assert part[name] is None
            else:
                assert_same_bits(part[name].detach(), expected[name].detach())


def _assert_near(parts: list[Result], expected: Result) -> None:
    """Edges off the block grid: the same bits on every rank, and the numbers of one process to 1e-6."""
    _assert_scores_same(parts[1:], parts[0])
    for name in ("log_probs", "entropy", "support_log_probs"):
        if expected[name] is not None:
            torch.testing.assert_close(parts[0][name], expected[name], rtol=1e-6, atol=1e-6)
    gradient = torch.cat([part["gradient"] for part in parts], 1)
    tolerance = 1e-6 if gradient.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(gradient, expected["gradient"], rtol=tolerance, atol=1e-6)


@pytest.mark.distributed
def test_everything_else_that_ranks_do_together() -> None:
    spawn(_everything_else, 3)


def _everything_else(rank: int, size: int) -> None:
    _bounds_that_cannot_be(rank)
    _one_collective(rank)
    _failures_are_shared(rank)
    _empty_input(rank)
    _padding_only_rank(rank)
    _reference(rank)
    _on_policy(rank)


def _shard(rank: int, group: dist.ProcessGroup | None = None) -> VocabShard:
    return VocabShard(UNEVEN[rank], UNEVEN[rank + 1], group)


def _local(rank: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    logits, targets = _problem(dtype)
    return logits[:, UNEVEN[rank] : UNEVEN[rank + 1]].clone(), targets


def _bounds_that_cannot_be(rank: int) -> None:
    group = dist.new_group()
    for start, message in ((rank * 9, "overlap"), (rank * 11, "leave a gap"), (rank * 10 + 1, "leave a gap")):
        with pytest.raises(ShardError, match=message):
            token_log_probs(
                torch.zeros(2, 10), torch.zeros(2, dtype=torch.int64), shard=VocabShard(start, start + 10, group)
            )


def _one_collective(rank: int) -> None:
    group = dist.new_group()
    logits, targets = _local(rank)
    support = Support.from_lists([[0, int(t)] for t in targets])
    for call, expected in ((1, 2), (2, 1), (3, 1)):
        leaf = logits.clone().requires_grad_()
        with CountCollectives() as forward:
            scores = token_log_probs(leaf, targets, shard=_shard(rank, group), entropy="grad", support=support)
        assert len(forward.names) == expected, f"call {call}: {forward.names}"
        with CountCollectives() as backward:
            (scores.log_probs.sum() + scores.entropy.sum() + scores.support_log_probs.sum()).backward()
        assert backward.names == []


def _failures_are_shared(rank: int) -> None:
    logits, targets = _local(rank)
    shard = _shard(rank)
    beyond = targets.clone()
    beyond[2] = VOCAB + rank
    for entropy in ("none", "grad"):
        for impl in ("chunked", "reference"):
            with pytest.raises(
                InputError, match=f"got {VOCAB + 1}" if rank == 1 else "on rank 1 of.*targets: expected ids"
            ):
                token_log_probs(logits, beyond if rank == 1 else targets, shard=shard, entropy=entropy, impl=impl)
    support = Support.from_lists([[int(t)] for t in targets])
    lacking = Support.from_lists([[int(t) if i else 7] for i, t in enumerate(targets)])
    with pytest.raises(SupportError, match="support of row 0: expected its target 0"):
        token_log_probs(logits, targets, shard=shard, support=lacking if rank == 2 else support)
    for validate in (None, False):
        with pytest.raises(InputError, match="the width of the shard"):
            token_log_probs(logits[:, 1:] if rank == 0 else logits, targets, shard=shard, validate=validate)
    with pytest.raises(InputError, match="temperature"):
        on_policy_token_log_probs(logits, targets, shard=shard, temperature=0.0 if rank == 0 else 1.0)
    # Nobody hangs, and the next call works.
    assert token_log_probs(logits, targets, shard=shard).log_probs.shape == (8,)


def _empty_input(rank: int) -> None:
    logits, targets = _local(rank, torch.bfloat16)
    leaf = logits[:0].requires_grad_()
    with CountCollectives() as forward:
        scores = token_log_probs(leaf, targets[:0], shard=_shard(rank), entropy="grad")
    assert len(forward.names) == 1
    assert scores.log_probs.dtype == torch.float32
    scores.log_probs.sum().backward()
    assert leaf.grad.shape == leaf.shape


def _padding_only_rank(rank: int) -> None:
    """With valid_vocab_size inside the second shard, the third has nothing to say and gets no gradient."""
    whole, targets = _problem(torch.float32)
    targets %= 3000
    logits = _local(rank)[0].requires_grad_()
    scores = token_log_probs(logits, targets, shard=_shard(rank), valid_vocab_size=3000, entropy="grad")
    expected = token_log_probs(whole, targets, valid_vocab_size=3000, entropy="value")
    torch.testing.assert_close(scores.log_probs.detach(), expected.log_probs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(scores.entropy.detach(), expected.entropy, rtol=1e-6, atol=1e-6)
    (scores.log_probs.sum() + scores.entropy.sum()).backward()
    assert bool(logits.grad.any()) == (rank < 2)


def _reference(rank: int) -> None:
    whole, targets = _problem(torch.float32)
    plain, leaf = whole.requires_grad_(), _local(rank)[0].requires_grad_()
    token_log_probs(plain, targets, impl="reference").log_probs.sum().backward()
    scores = token_log_probs(leaf, targets, shard=_shard(rank), impl="reference").log_probs
    assert torch.equal(scores, token_log_probs(whole, targets, impl="reference").log_probs)
    scores.sum().backward()
    assert torch.equal(leaf.grad, plain.grad[:, UNEVEN[rank] : UNEVEN[rank + 1]])


def _on_policy(rank: int) -> None:
    logits, targets = random_rows(7, VOCAB, torch.bfloat16)
    targets %= VALID
    options: dict[str, Any] = {"temperature": 0.7, "valid_vocab_size": VALID, "entropy": "grad"}
    plain = logits.clone().requires_grad_()
    expected = on_policy_token_log_probs(plain, targets, **options)
    (expected.log_probs.sum() + expected.entropy.sum()).backward()
    leaf = logits[:, UNEVEN[rank] : UNEVEN[rank + 1]].clone().requires_grad_()
    got = on_policy_token_log_probs(leaf, targets, shard=_shard(rank), chunk_size=3, **options)
    assert_same_bits(got.log_probs.detach(), expected.log_probs.detach())
    with CountCollectives() as backward:
        (got.log_probs.sum() + got.entropy.sum()).backward()
    assert backward.names == []
    own = plain.grad[:, UNEVEN[rank] : UNEVEN[rank + 1]]
    torch.testing.assert_close(leaf.grad, own, rtol=2**-8, atol=2e-7)
    empty = on_policy_token_log_probs(leaf[:0], targets[:0], shard=_shard(rank))
    assert empty.log_probs.shape == (0,)
