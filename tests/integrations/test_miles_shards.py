"""miles' and slime's log-probs over vocabulary shards: two ranks, values and gradients of the whole vocabulary."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from logparity.integrations.miles import calculate_log_probs_and_entropy
from tests.support.spawn import spawn

pytestmark = pytest.mark.distributed

ROWS, COLUMNS = 7, 132


def whole() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, COLUMNS, generator=generator) * 3
    return logits, torch.randint(0, COLUMNS - 6, (ROWS,), generator=generator)


def one_rank(rank: int, size: int, on_policy: bool) -> dict[str, torch.Tensor]:
    logits, tokens = whole()
    mine = logits.chunk(size, dim=1)[rank].clone().requires_grad_()
    vocabulary = COLUMNS - 6 if on_policy else None
    log_probs, entropy = calculate_log_probs_and_entropy(
        mine, tokens, dist.group.WORLD, with_entropy=True, true_on_policy=on_policy, vocab_size=vocabulary
    )
    (log_probs.sum() + 0.1 * entropy.sum()).backward()
    return {"log_probs": log_probs.detach().reshape(-1), "entropy": entropy.detach(), "grad": mine.grad}


@pytest.mark.parametrize("on_policy", [False, True])
def test_two_ranks_give_the_whole_vocabularys_scores(on_policy: bool) -> None:
    ranks = spawn(one_rank, 2, on_policy)
    logits, tokens = whole()
    double = logits.double().requires_grad_()
    used = double[:, : COLUMNS - 6] if on_policy else double
    every = used.log_softmax(-1)
    log_probs, entropy = every.gather(1, tokens[:, None])[:, 0], -(every.exp() * every).sum(-1)
    (log_probs.sum() + 0.1 * entropy.sum()).backward()
    for found in ranks:
        torch.testing.assert_close(found["log_probs"].double(), log_probs.detach(), rtol=0, atol=3e-6)
        torch.testing.assert_close(found["entropy"].double(), entropy.detach(), rtol=0, atol=3e-6)
    torch.testing.assert_close(torch.cat([r["grad"] for r in ranks], 1).double(), double.grad, rtol=0, atol=1e-6)
