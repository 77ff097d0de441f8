"""Bad input is an error that names itself, or is counted and left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from logparity.errors import ConfigError, InputError, NonFiniteError
from logparity.losses import (
    CISPOConfig,
    ClipConfig,
    CorrectionConfig,
    Denominators,
    EntropyConfig,
    GSPOConfig,
    KLConfig,
    OPSMConfig,
    PolicyObjective,
    RatioLevel,
    ReductionConfig,
    ReinforceConfig,
    RejectionConfig,
    Sequences,
    SFTObjective,
    TokenTensors,
    ValueConfig,
    ValueObjective,
    WeightMode,
    clip_loss,
    correct,
    count_denominators,
)
from tests.support.loss_batches import OBJECTIVES, REDUCTIONS, random_tokens, take


def poison(tokens: TokenTensors, name: str, index: int, value: float) -> TokenTensors:
    values = getattr(tokens, name).detach().clone()
    values[index] = value
    return replace(tokens, **{name: values.requires_grad_(getattr(tokens, name).requires_grad)})


@pytest.mark.parametrize(
    "name", ["log_probs", "old_log_probs", "advantages", "ref_log_probs", "rollout_log_probs", "entropy"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_active_token_is_raised_or_counted(name: str, value: float) -> None:
    objective = PolicyObjective(
        kl=KLConfig("k3", 0.1), entropy_bonus=EntropyConfig(0.1), correction=CorrectionConfig(), opsm=OPSMConfig()
    )
    clean = random_tokens(hole=False)
    index = 13  # token 2 of sequence 3
    tokens = poison(clean, name, index, value)
    with pytest.raises(NonFiniteError, match=rf"{name} of sample 'sample-3'.*got {value} at response position 2"):
        replace(objective, strict=True)(tokens, count_denominators([tokens]))
    loss, metrics = objective(tokens, count_denominators([tokens]))
    loss.backward()
    # The same as without the token, but with the denominators of the whole.
    others = torch.arange(tokens.mask.numel()) != index
    rest = take(clean, others, list(range(clean.num_sequences)))
    expected, _ = objective(rest, count_denominators([clean]))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(tokens.log_probs.grad[others], rest.log_probs.grad, rtol=1e-12, atol=1e-15)
    assert tokens.log_probs.grad[index] == 0
    assert float(metrics["policy/nonfinite_fraction"].numerator) == 1
    assert metrics["policy/nonfinite_fraction"].value() == pytest.approx(1 / 23)


def test_positions_name_the_token_of_a_split_sequence() -> None:
    tokens = poison(random_tokens(hole=False), "log_probs", 13, float("nan"))
    tokens = replace(tokens, keys=None, positions=torch.arange(23) + 1000)
    with pytest.raises(NonFiniteError, match=r"number 3 of the micro-batch.*position 1013"):
        SFTObjective(strict=True)(tokens, count_denominators([tokens]))


def test_a_ratio_that_overflows_is_clamped_and_counted() -> None:
    tokens = poison(poison(random_tokens(hole=False), "old_log_probs", 4, -5000.0), "log_probs", 8, -5000.0)
    for name in ("clip", "cispo", "gspo", "kl", "tis"):
        loss, metrics = OBJECTIVES[name](tokens, count_denominators([tokens]))
        loss.backward()
        assert torch.isfinite(loss)
        assert tokens.log_probs.grad.isfinite().all()
        tokens.log_probs.grad = None
        if name in ("clip", "cispo"):
            assert float(metrics["policy/ratio_clamped_fraction"].numerator) == 2
    config = CorrectionConfig(level=RatioLevel.SEQUENCE, mode=WeightMode.NONE)
    assert torch.equal(
        correct(tokens.old_log_probs, tokens.rollout_log_probs, tokens.mask, Sequences.of(tokens), config).weights,
        torch.ones(23, dtype=torch.float64),
    )


def test_a_step_with_its_own_old_log_probs_has_ratio_exactly_one() -> None:
    tokens = random_tokens(dtype=torch.float32)
    tokens = replace(tokens, old_log_probs=tokens.log_probs.detach(), ref_log_probs=tokens.log_probs.detach())
    for surrogate in (ClipConfig(dual_clip=3.0), GSPOConfig(), CISPOConfig()):
        objective = PolicyObjective(surrogate=surrogate, kl=KLConfig("k3", 0.1), opsm=OPSMConfig())
        _, metrics = objective(tokens, count_denominators([tokens]))
        assert metrics["policy/ratio"].value() == 1.0
        for name in ("policy/clip_fraction", "policy/kl_old", "kl/reference", "policy/opsm_dropped_fraction"):
            assert metrics[name].value() == 0.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ClipConfig(-0.2, 0.2), "clip_low"),
        (lambda: ClipConfig(1.2, 0.2), "clip_low"),
        (lambda: ClipConfig(0.2, -0.1), "clip_high"),
        (lambda: ClipConfig(float("nan"), 0.2), "clip bounds"),
        (lambda: GSPOConfig(0.1, -0.1), "clip_high"),
        (lambda: CISPOConfig(2.0, 0.1), "clip_low"),
        (lambda: ClipConfig(dual_clip=1.0), "dual_clip: expected a number > 1"),
        (lambda: ClipConfig(dual_clip=float("nan")), "dual_clip"),
        (lambda: ReductionConfig("fixed_length"), "length"),
        (lambda: ReductionConfig("fixed_length", 0), "length"),
        (lambda: ReductionConfig("token_mean", 5), "no effect"),
        (lambda: CorrectionConfig("mask", "token", 5.0, 0.5), "bounds of the correction"),
        (lambda: CorrectionConfig("mask", "token", 0.5, 0.9), "bounds of the correction"),
        (lambda: RejectionConfig("token", 1.1, 2.0), "bounds of the rejection"),
        (lambda: CorrectionConfig("truncate", low=0.5), "mode clip"),
        (lambda: CorrectionConfig("none", batch_normalise=True), "batch_normalise"),
        (lambda: CorrectionConfig(token_veto=1.5), "token_veto"),
        (lambda: OPSMConfig(-1.0), "threshold"),
        (lambda: EntropyConfig(float("inf")), "coefficient"),
        (lambda: ValueConfig(clip=0.0), "clip of the value loss"),
        (lambda: ValueConfig(coefficient=-1.0), "coefficient of the value loss"),
        (lambda: KLConfig("k4"), "estimator of the KL term: expected one of k1, k2, k3, got 'k4'"),
        (lambda: ReductionConfig("x"), "reduction: expected one of token_mean, .*, fixed_length, got 'x'"),
        (lambda: CorrectionConfig("x"), "mode of the correction: expected one of truncate, clip, mask, none, got 'x'"),
        (lambda: CorrectionConfig(level="x"), "level of the correction: expected one of token, sequence, geometric"),
        (lambda: RejectionConfig("x"), "level of the rejection: expected one of token, sequence, geometric"),
        (lambda: CorrectionConfig(rejection=0.5), r"rejection: expected one of RejectionConfig\(...\), None, got 0.5"),
        (lambda: ClipConfig("0.2"), "clip_low: expected a number, got '0.2'"),
        (lambda: ClipConfig(dual_clip="3"), "dual_clip: expected a number, got '3'"),
        (lambda: CISPOConfig(clip_high=None), "clip_high: expected a number, got None"),
        (lambda: KLConfig(coefficient="1"), "coefficient: expected a number"),
        (lambda: EntropyConfig("1"), "coefficient: expected a number"),
        (lambda: OPSMConfig("1"), "threshold: expected a number"),
        (lambda: ValueConfig(clip="1"), "clip: expected a number"),
        (lambda: CorrectionConfig(high="2"), "high: expected a number"),
        (lambda: CorrectionConfig(token_veto="2"), "token_veto: expected a number"),
        (lambda: ReductionConfig("fixed_length", 2.5), "length: expected an integer >= 1, got 2.5"),
        (lambda: PolicyObjective(surrogate="clip"), r"surrogate: expected one of ClipConfig\(...\), .*, got 'clip'"),
        (lambda: PolicyObjective(kl=0.1), r"kl: expected KLConfig\(...\), got 0.1"),
        (lambda: PolicyObjective(reduction="token_mean"), r"reduction: expected ReductionConfig\(...\)"),
        (lambda: SFTObjective("token_mean"), r"reduction: expected ReductionConfig\(...\)"),
        (lambda: ValueObjective(0.2), r"config: expected ValueConfig\(...\)"),
    ],
)
def test_wrong_configs(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_wrong_tensors() -> None:
    tokens = random_tokens()
    counts = count_denominators([tokens])
    objective = PolicyObjective()
    with pytest.raises(InputError, match=r"old_log_probs: expected shape \(23,\)"):
        objective(replace(tokens, old_log_probs=tokens.old_log_probs[:-1]), counts)
    with pytest.raises(InputError, match="mask: expected shape"):
        objective(replace(tokens, mask=tokens.mask[:-1]), counts)
    mask = tokens.mask.double()
    mask[3] = 0.5
    with pytest.raises(InputError, match=r"mask: expected only 0 and 1, got 0\.5 at index 3; 1 in all"):
        objective(replace(tokens, mask=mask), counts)
    with pytest.raises(InputError, match="advantages: expected a tensor"):
        objective(replace(tokens, advantages=None), counts)
    with pytest.raises(InputError, match="rollout_log_probs"):
        replace(objective, correction=CorrectionConfig())(replace(tokens, rollout_log_probs=None), counts)
    with pytest.raises(InputError, match=r"sequence_ids: expected values in \[0, 3\)"):
        objective(replace(tokens, num_sequences=3, keys=None), counts)
    with pytest.raises(InputError, match="keys: expected 6"):
        objective(replace(tokens, keys=("one",)), counts)
    with pytest.raises(InputError, match="mean_weight"):
        replace(objective, correction=CorrectionConfig(batch_normalise=True))(tokens, counts)
    with pytest.raises(InputError, match=r"mask: expected a 1-D tensor .*, got NoneType"):
        objective(replace(tokens, mask=None), counts)
    with pytest.raises(InputError, match=r"log_probs: expected a 1-D tensor .*, got list"):
        objective(replace(tokens, log_probs=tokens.log_probs.tolist()), counts)
    with pytest.raises(InputError, match=r"log_probs: expected a 1-D tensor .*, got shape \(1, 23\)"):
        objective(replace(tokens, log_probs=tokens.log_probs[None]), counts)
    with pytest.raises(InputError, match=r"sequence_ids: expected int64, got torch\.float32"):
        objective(replace(tokens, sequence_ids=tokens.sequence_ids.float()), counts)
    with pytest.raises(InputError, match=r"values: expected a 1-D tensor .*, got list"):
        clip_loss([-1.0], torch.zeros(1), torch.zeros(1), torch.ones(1).bool(), ClipConfig())
    with pytest.raises(InputError, match=r"mask: expected a 1-D tensor .*, got NoneType"):
        clip_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), None, ClipConfig())
    with pytest.raises(InputError, match=r"bool mask with one entry per value, got torch\.bool \(1,\) for .*\(3,\)"):
        clip_loss(torch.zeros(3), torch.zeros(3), torch.zeros(3), torch.ones(1).bool(), ClipConfig())
    with pytest.raises(InputError, match="sequences <= tokens"):
        Denominators(tokens=1, sequences=2)


@pytest.mark.parametrize("wrong", [1.5, 4.0, "4", None, True, torch.tensor(1.5)])
def test_denominators_are_whole_numbers(wrong: Any) -> None:
    with pytest.raises(InputError, match="Denominators: expected tokens as an integer"):
        Denominators(wrong, 0)
    with pytest.raises(InputError, match="Denominators: expected sequences as an integer"):
        Denominators(10, wrong)
    assert Denominators(torch.tensor(3), 1) == Denominators(3, 1)
    with pytest.raises(InputError, match="mean_weight: expected a finite number >= 0"):
        Denominators(3, 1, math.nan)


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_denominators_below_what_the_micro_batch_holds_are_an_error(name: str) -> None:
    tokens = random_tokens()
    counts = count_denominators([tokens])
    kind = "tokens" if name == "token_mean" else "sequences"
    objective = PolicyObjective(reduction=REDUCTIONS[name])
    objective(tokens, counts)
    for wrong in (Denominators(0, 0), replace(counts, **{kind: getattr(counts, kind) - 1})):
        expected = f"denominators: expected at least {getattr(counts, kind)} {kind},.* got {getattr(wrong, kind)}"
        if wrong.sequences <= wrong.tokens:
            with pytest.raises(InputError, match=expected):
                objective(tokens, wrong)


def test_numeric_masks_count_like_bool_ones() -> None:
    tokens = random_tokens()
    for objective in OBJECTIVES.values():
        expected, _ = objective(tokens, count_denominators([tokens]))
        for dtype in (torch.int64, torch.float32, torch.uint8):
            same = replace(tokens, mask=tokens.mask.to(dtype))
            assert objective(same, count_denominators([same]))[0].item() == expected.item()


def test_only_what_a_loss_reads_must_be_there() -> None:
    assert PolicyObjective(surrogate=ReinforceConfig()).reads == {"log_probs", "advantages"}
    assert PolicyObjective().reads == {"log_probs", "advantages", "old_log_probs"}
    full = PolicyObjective(
        kl=KLConfig(coefficient=0.1), entropy_bonus=EntropyConfig(0.1), correction=CorrectionConfig()
    )
    assert full.reads == {
        "log_probs", "advantages", "old_log_probs", "ref_log_probs", "rollout_log_probs", "entropy"
    }  # fmt: skip
    assert math.isclose(SFTObjective().temperature or 0.0, 1.0)
    assert PolicyObjective().temperature is None
