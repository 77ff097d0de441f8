"""The linear path over a sharded vocabulary, on gloo."""

from __future__ import annotations

import pytest
import torch

from logparity.errors import InputError
from logparity.ops import linear_token_log_probs
from logparity.parallel import VocabShard
from tests.ops.test_linear import with_support
from tests.support.collectives import CountCollectives
from tests.support.heads import HeadCase, random_head
from tests.support.spawn import spawn

pytestmark = pytest.mark.distributed

VOCAB = 9001
ALIGNED = (0, 4096, VOCAB)
UNEVEN = (0, 1000, 5500, VOCAB)


def score(case: HeadCase, shard: VocabShard | None, columns: slice) -> list[torch.Tensor]:
    """Scores with all options, and this part's gradients."""
    hidden = case.hidden.detach().requires_grad_()
    weight = case.weight.detach()[columns].requires_grad_()
    bias = case.bias.detach()[columns].requires_grad_()
    scores = linear_token_log_probs(
        hidden,
        weight,
        case.targets,
        bias=bias,
        entropy="grad",
        support=with_support(case.targets, VOCAB - 50),
        temperature=0.8,
        shard=shard,
        valid_vocab_size=VOCAB - 40,
        chunk_size=5,
    )
    gradients = torch.autograd.grad(scores, [hidden, weight, bias], list(case.upstream))
    return [each.detach() for each in (*scores, *gradients)]


def case_for_all() -> HeadCase:
    case = random_head(13, 16, VOCAB)
    case.targets = case.targets % (VOCAB - 50)
    return case


def on_a_rank(rank: int, _size: int, edges: tuple[int, ...]) -> list[torch.Tensor]:
    start, stop = edges[rank : rank + 2]
    return score(case_for_all(), VocabShard(start, stop), slice(start, stop))


def check_against_whole(parts: list[list[torch.Tensor]], whole: list[torch.Tensor]) -> None:
    for place in range(3):
        assert all(torch.equal(part[place], parts[0][place]) for part in parts)
        assert torch.allclose(parts[0][place], whole[place], atol=1e-6, rtol=1e-6)
    # A rank's gradient of the hidden states is its partial sum; weight and bias are its own rows, complete.
    assert torch.allclose(sum(part[3] for part in parts), whole[3], atol=5e-6)
    assert torch.allclose(torch.cat([part[4] for part in parts]), whole[4], atol=5e-6)
    assert torch.allclose(torch.cat([part[5] for part in parts]), whole[5], atol=5e-6)


def count_collectives(rank: int, _size: int) -> tuple[int, int]:
    case = random_head(6, 8, VOCAB)
    start, stop = ALIGNED[rank : rank + 2]
    weight, shard = case.weight.detach()[start:stop].requires_grad_(), VocabShard(start, stop)
    linear_token_log_probs(case.hidden, weight, case.targets, shard=shard)  # bounds are exchanged here, once
    with CountCollectives() as forward:
        scores = linear_token_log_probs(case.hidden, weight, case.targets, shard=shard, entropy="grad")
    with CountCollectives() as backward:
        (scores.log_probs.sum() + scores.entropy.sum()).backward()
    return len(forward.names), len(backward.names)


def one_rank_is_wrong(rank: int, _size: int) -> str:
    case = random_head(6, 8, VOCAB)
    start, stop = ALIGNED[rank : rank + 2]
    targets = case.targets if rank else case.targets + VOCAB
    try:
        linear_token_log_probs(case.hidden, case.weight[start:stop], targets, shard=VocabShard(start, stop))
    except InputError as error:
        return str(error)
    return "no error"


def all_of_it(rank: int, size: int) -> tuple[list[torch.Tensor], tuple[int, int], str]:
    """In one group of processes: starting one takes longer than everything it does."""
    return on_a_rank(rank, size, ALIGNED), count_collectives(rank, size), one_rank_is_wrong(rank, size)


def test_two_shards_on_tile_edges() -> None:
    parts, collectives, errors = zip(*spawn(all_of_it, 2), strict=True)
    whole = score(case_for_all(), None, slice(0, VOCAB))
    check_against_whole(list(parts), whole)
    assert all(torch.equal(parts[0][place], whole[place]) for place in range(3))  # the same bits
    assert collectives == ((1, 0), (1, 0))  # one forward, none backward
    assert errors[0].startswith("targets: expected ids in [0, 9001)")
    assert errors[1].startswith("on rank 0 of the vocabulary's group: targets: expected ids in [0, 9001)")


def test_three_uneven_shards_off_the_grid() -> None:
    check_against_whole(spawn(on_a_rank, 3, UNEVEN), score(case_for_all(), None, slice(0, VOCAB)))
