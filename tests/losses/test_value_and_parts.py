"""The value loss by hand, and the law that parts add up to the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logparity.losses import (
    CorrectionConfig,
    Denominators,
    LogitPrecision,
    Objective,
    PolicyObjective,
    RatioLevel,
    Sequences,
    SFTObjective,
    ValueConfig,
    ValueObjective,
    ValueTensors,
    count_denominators,
    mean_weight_share,
    merge_metrics,
)
from tests.support.loss_batches import OBJECTIVES, REDUCTIONS, random_tokens, take


@pytest.mark.parametrize("clip", [0.2, None])
@pytest.mark.parametrize("reduction", sorted(REDUCTIONS))
def test_value_loss_by_hand(clip: float | None, reduction: str) -> None:
    batch = random_tokens()
    mask, ids = batch.mask, batch.sequence_ids
    tokens = ValueTensors(
        batch.log_probs, mask, ids, batch.num_sequences, old_values=batch.old_log_probs, returns=batch.ref_log_probs
    )
    counts = count_denominators([batch])
    loss, metrics = ValueObjective(ValueConfig(clip, 0.5), REDUCTIONS[reduction], strict=True)(tokens, counts)
    loss.backward()
    expected, gradient, clipped = 0.0, [], 0
    for i, active in enumerate(mask.tolist()):
        if not active:
            gradient.append(0.0)
            continue
        value, old, target = (x[i].item() for x in (batch.log_probs, batch.old_log_probs, batch.ref_log_probs))
        length = int((mask & (ids == ids[i])).sum())
        weight = {
            "token_mean": 1 / counts.tokens,
            "sequence_mean_token_mean": 1 / (counts.sequences * length),
            "sequence_mean_token_sum": 1 / counts.sequences,
            "fixed_length": 1 / (counts.sequences * 12),
        }[reduction]
        error, slope = (value - target) ** 2, value - target
        if clip is not None:
            bounded = min(max(value, old - clip), old + clip)
            if (bounded - target) ** 2 > error:
                error, slope, clipped = (bounded - target) ** 2, 0.0, clipped + 1
        expected += weight * error / 2
        gradient.append(weight * slope)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert batch.log_probs.grad.tolist() == pytest.approx(gradient, rel=1e-11, abs=1e-15)
    if clip is not None:
        assert clipped > 0
        assert metrics["value/clip_fraction"].value() == pytest.approx(clipped / counts.tokens)


def test_each_loss_says_what_it_needs() -> None:
    policy: Objective = PolicyObjective()
    sft: Objective = SFTObjective()
    assert policy.precision is sft.precision is LogitPrecision.MODEL
    assert ValueObjective().precision is LogitPrecision.FP32


@given(
    name=st.sampled_from(sorted(OBJECTIVES)),
    reduction=st.sampled_from(sorted(REDUCTIONS)),
    owners=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    seed=st.integers(0, 99),
)
def test_micro_batches_add_up(name: str, reduction: str, owners: list[int], seed: int) -> None:
    whole = random_tokens(seed=seed, dtype=torch.float32)
    objective = replace(OBJECTIVES[name], reduction=REDUCTIONS[reduction])
    counts = count_denominators([whole])
    loss, metrics = objective(whole, counts)
    loss.backward()
    total, gathered = 0.0, torch.zeros_like(whole.log_probs)
    parts = []
    for part in sorted(set(owners)):
        sequences = [i for i, owner in enumerate(owners) if owner == part]
        chosen = torch.isin(whole.sequence_ids, torch.tensor(sequences))
        micro = take(whole, chosen, sequences)
        share, found = objective(micro, counts)
        share.backward()
        total += share.item()
        gathered[chosen] = micro.log_probs.grad
        parts.append(found)
    assert total == pytest.approx(loss.item(), rel=1e-6, abs=1e-7)
    torch.testing.assert_close(gathered, whole.log_probs.grad, rtol=1e-6, atol=1e-9)
    merged = merge_metrics(parts)
    assert merged.keys() == metrics.keys()
    for key, ratio in metrics.items():
        assert merged[key].value() == pytest.approx(ratio.value(), rel=1e-9, abs=1e-12)
    assert metrics["loss"].value() == pytest.approx(loss.item(), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("level", list(RatioLevel))
def test_batch_normalised_weights_have_mean_one_over_the_step(level: RatioLevel) -> None:
    config = CorrectionConfig(level=level, batch_normalise=True)
    whole = random_tokens()
    parts = [take(whole, torch.isin(whole.sequence_ids, torch.tensor(own)), own) for own in ([0, 2, 3], [1, 4, 5])]

    def share(tokens):
        return mean_weight_share(
            tokens.old_log_probs, tokens.rollout_log_probs, tokens.mask, Sequences.of(tokens), config
        )

    mean = (share(parts[0]) + share(parts[1])).value()
    assert mean == pytest.approx(share(whole).value(), rel=1e-12)
    log_ratio = whole.old_log_probs - whole.rollout_log_probs
    weights = []
    for sequence in range(6):
        own = log_ratio[whole.mask & (whole.sequence_ids == sequence)]
        if level is RatioLevel.TOKEN:
            weights += own.exp().clamp(max=2).tolist()
        elif own.numel():
            weights.append(min(2.0, (own.sum() if level is RatioLevel.SEQUENCE else own.mean()).exp().item()))
    assert mean == pytest.approx(sum(weights) / len(weights), rel=1e-12)
    counts = count_denominators([whole])
    normalised = Denominators(counts.tokens, counts.sequences, mean_weight=mean)
    plain = PolicyObjective(correction=replace(config, batch_normalise=False))(whole, counts)[0]
    scaled = PolicyObjective(correction=config)(whole, normalised)[0]
    assert scaled.item() == pytest.approx(plain.item() / mean, rel=1e-12)
