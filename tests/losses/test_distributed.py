"""Data and context parallelism over gloo: the same loss, gradients, and metrics as on one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from logparity.layout.anchor import graph_anchor
from logparity.layout.context_parallel import ContextLayout, ContextSplit
from logparity.layout.packed import PackedBatch, pack_sequences
from logparity.losses import (
    CorrectionConfig,
    Denominators,
    GroupSum,
    Metrics,
    PolicyObjective,
    RatioLevel,
    ReductionConfig,
    RejectionConfig,
    SFTObjective,
    TokenTensors,
    WeightMode,
    count_denominators,
    merge_metrics,
    whiten,
)
from logparity.ops import token_log_probs
from tests.support.loss_batches import OBJECTIVES, REDUCTIONS, random_tokens, take
from tests.support.spawn import spawn

VOCAB, WIDTH = 37, 8
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PROMPTS, RESPONSES = (3, 1, 25, 4), (6, 11, 5, 0)
Objectives = dict[str, PolicyObjective | SFTObjective]


@pytest.mark.distributed
def test_ranks_give_the_loss_of_one_process() -> None:
    spawn(_every_check, 4)


def _every_check(rank: int, size: int) -> None:
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in (1, 2, 4)}
    for ranks, group in groups.items():
        if rank < ranks:
            _data_parallel(rank, ranks, group)
    if rank < 2:
        for layout in ContextLayout:
            for lengths in ((PROMPTS, RESPONSES), ((30,), (2,)), ((9,), (3,))):
                for dtype in DTYPES:
                    _context_parallel(rank, groups[2], layout, *lengths, dtype)


def _objectives() -> Objectives:
    geometric = RejectionConfig(RatioLevel.GEOMETRIC, 0.6, 1.5)
    config = CorrectionConfig(WeightMode.CLIP, RatioLevel.GEOMETRIC, 0.7, 1.3, geometric, 0.05)
    return {**OBJECTIVES, "geometric": PolicyObjective(correction=config)}


def _data_parallel(rank: int, ranks: int, group: ProcessGroup) -> None:
    """Sequences shared out over ranks, and over two micro-batches on each."""
    whole = random_tokens(dtype=torch.float32)
    counts = count_denominators([whole])
    hidden = torch.randn(whole.mask.numel(), WIDTH, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(whole.mask.numel()) % VOCAB

    def step(objective: Any, micro: list[list[int]]) -> tuple[Tensor, Tensor, Metrics]:
        weight = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(2)).requires_grad_()
        total, parts = torch.zeros((), dtype=torch.float64), []
        for own in micro:
            chosen = torch.isin(whole.sequence_ids, torch.tensor(own, dtype=torch.int64))
            scores = token_log_probs(hidden[chosen] @ weight.T, targets[chosen], entropy="grad")
            tokens = replace(take(whole, chosen, own), log_probs=scores.log_probs, entropy=scores.entropy)
            loss, metrics = objective(tokens, counts)
            loss.backward()
            total += loss.detach().double()
            parts.append(metrics)
        return total, weight.grad, merge_metrics(parts)

    every_reduction = {name: PolicyObjective(reduction=reduction) for name, reduction in REDUCTIONS.items()}
    for name, objective in (_objectives() | every_reduction).items():
        everyone = list(range(whole.num_sequences))
        expected, gradient, metrics = step(objective, [everyone])
        own = everyone[rank::ranks]
        loss, found, share = step(objective, [own[:1], own[1:]])
        _sums_to(loss, expected, group, f"{name} loss over {ranks} ranks")
        dist.all_reduce(found, group=group)
        _close(found, gradient, f"{name} gradient over {ranks} ranks")
        _metrics_agree(share, metrics, group)
    values, mask = whole.advantages, whole.mask
    own_tokens = whole.sequence_ids % ranks == rank
    ours = whiten(values[own_tokens], mask[own_tokens], across=GroupSum(group))
    _close(ours, whiten(values, mask)[own_tokens], "whitening")


def _context_parallel(
    rank: int,
    group: ProcessGroup,
    layout: ContextLayout,
    prompts: tuple[int, ...],
    responses: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    """One packed row split over two ranks: equal per-token log-probs, and sums that agree."""
    batch = _packed(prompts, responses)
    rows, split = batch.responses.rows, ContextSplit(tuple(batch.cu_seqlens.tolist()), 2, layout)
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(1, split.total, VOCAB, generator=generator) * 3).to(dtype)
    whole = logits.clone().requires_grad_()
    expected = token_log_probs(whole[0], batch.targets, rows=rows).log_probs
    picked, local_rows = split.local_rows(rows, rank)
    local = split.split(logits, rank, dim=1).requires_grad_()
    log_probs = token_log_probs(local[0], batch.targets[picked], rows=local_rows).log_probs
    assert log_probs.dtype == torch.float32
    assert torch.equal(split.gather(log_probs, rows, group), expected.detach())
    tokens = _training_tokens(batch, expected)
    counts = Denominators(int(tokens.mask.sum()), len(set(tokens.sequence_ids.tolist())))
    for name, objective in _objectives().items():
        if name == "entropy":
            continue
        chosen = replace(objective, reduction=ReductionConfig("sequence_mean_token_mean"))
        loss, metrics = chosen(tokens, counts)
        (gradient,) = torch.autograd.grad(loss, whole, retain_graph=True)
        part, share = chosen(_share(tokens, picked, log_probs, group), counts)
        (found,) = torch.autograd.grad(part + graph_anchor(local), local, retain_graph=True)
        _sums_to(part, loss, group, f"{name} {layout} {dtype}")
        assert found.dtype == dtype
        _close(found.double(), split.split(gradient, rank, dim=1).double(), f"{name} gradient {layout} {dtype}")
        if not picked.numel():
            assert not found.any()
        _metrics_agree(share, metrics, group)


def _packed(prompts: tuple[int, ...], responses: tuple[int, ...]) -> PackedBatch:
    numbers = np.arange(1, 100, dtype=np.int64) % VOCAB
    lengths = list(zip(prompts, responses, strict=True))
    return pack_sequences([numbers[:p] for p, _ in lengths], [numbers[p : p + r] for p, r in lengths], multiple=4)


def _training_tokens(batch: PackedBatch, log_probs: Tensor) -> TokenTensors:
    generator = torch.Generator().manual_seed(5)

    def near(scale: float) -> Tensor:
        return log_probs.detach() + torch.randn(log_probs.shape, generator=generator) * scale

    mask = torch.arange(log_probs.numel()) % 7 != 5
    return TokenTensors(
        log_probs,
        mask,
        batch.responses.sequence_ids,
        len(batch.lengths),
        old_log_probs=near(0.2),
        advantages=near(1.0) - log_probs.detach(),
        ref_log_probs=near(0.2),
        rollout_log_probs=near(0.2),
    )


def _share(tokens: TokenTensors, picked: Tensor, log_probs: Tensor, group: ProcessGroup) -> TokenTensors:
    """The tokens a rank scored; its sequences are numbered as on every other rank."""
    names = ("mask", "sequence_ids", "old_log_probs", "advantages", "ref_log_probs", "rollout_log_probs")
    own = {name: getattr(tokens, name)[picked] for name in names}
    return replace(tokens, log_probs=log_probs, sequence_sum=GroupSum(group), **own)


def _metrics_agree(share: Metrics, whole: Metrics, group: ProcessGroup) -> None:
    assert share.keys() == whole.keys()
    for name, ratio in whole.items():
        sums = torch.stack([torch.as_tensor(x).double() for x in (share[name].numerator, share[name].denominator)])
        dist.all_reduce(sums, group=group)
        for found, expected in zip(sums.tolist(), (ratio.numerator, ratio.denominator), strict=True):
            assert found == pytest.approx(float(expected), rel=1e-6, abs=1e-9), name


def _sums_to(part: Tensor, whole: Tensor, group: ProcessGroup, what: str) -> None:
    """The parts add up to within 1e-6 of their sizes; they may cancel, and each is rounded to float32 once."""
    total = torch.stack([part.detach().double(), part.detach().double().abs()])
    dist.all_reduce(total, group=group)
    assert abs(total[0] - whole.detach()) <= 1e-6 * total[1] + 1e-12, f"{what}: {total[0]} for {whole}"


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    """Within 1e-6 of the largest entry."""
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    gap = float((found - expected).abs().max()) if found.numel() else 0.0
    assert gap <= 1e-6 * max(scale, 1e-3), f"{what}: off by {gap} of {scale}"
