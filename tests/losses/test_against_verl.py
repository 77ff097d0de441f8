"""Our losses, corrections, and advantages against recorded values of the real verl."""

from __future__ import annotations

import pytest
import torch

from logparity.losses import (
    CISPOConfig,
    ClipConfig,
    CorrectionConfig,
    GSPOConfig,
    KLConfig,
    PolicyObjective,
    RatioLevel,
    Reduction,
    ReductionConfig,
    RejectionConfig,
    Sequences,
    ValueConfig,
    WeightMode,
    correct,
    count_denominators,
    gae,
    grpo_advantages,
    kl_loss,
    mean_weight_share,
    reinforce_plus_plus_advantages,
    reinforce_plus_plus_baseline_advantages,
    rloo_advantages,
    token_rewards,
    value_loss,
    whiten,
)
from tests.losses import golden_batch as recorded

VERL = recorded.golden()["verl"]
SURROGATES = {
    "vanilla": ClipConfig(0.2, 0.28, dual_clip=3.0),
    "vanilla_tight_dual": ClipConfig(0.1, 0.1, dual_clip=1.2),
    "gspo": GSPOConfig(0.03, 0.04),
    "cispo": CISPOConfig(1.0, 0.3),
}
REDUCTIONS = {
    "token-mean": ReductionConfig(Reduction.TOKEN_MEAN),
    "seq-mean-token-mean": ReductionConfig(Reduction.SEQUENCE_MEAN_TOKEN_MEAN),
    "seq-mean-token-sum": ReductionConfig(Reduction.SEQUENCE_MEAN_TOKEN_SUM),
    "seq-mean-token-sum-norm": ReductionConfig(Reduction.FIXED_LENGTH, 12),
}


@pytest.mark.parametrize("case", SURROGATES)
@pytest.mark.parametrize("mode", REDUCTIONS)
def test_policy_losses(case: str, mode: str) -> None:
    expected = VERL["policy"][f"{case}/{mode}"]
    tokens = recorded.tokens("advantages" if case == "gspo" else "token_advantages")
    objective = PolicyObjective(surrogate=SURROGATES[case], reduction=REDUCTIONS[mode], strict=True)
    loss, metrics = objective(tokens, count_denominators([tokens]))
    loss.backward()
    # verl divides by counts + 1e-8 in its sequence means and metrics.
    assert loss.item() == pytest.approx(expected["loss"], rel=3e-8)
    torch.testing.assert_close(tokens.log_probs.grad, recorded.matrix(expected["gradient"]), rtol=3e-8, atol=1e-12)
    assert metrics["policy/clip_fraction"].value() == pytest.approx(expected["metrics"]["actor/pg_clipfrac"], rel=1e-7)
    if "dual" in case:
        dual = metrics["policy/dual_clip_fraction"].value()
        assert dual == pytest.approx(expected["metrics"]["actor/pg_clipfrac_lower"], rel=1e-7)
        assert dual > 0


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_terms(kind: str) -> None:
    log_probs = recorded.flat("log_probs").requires_grad_()
    values, _ = kl_loss(log_probs, recorded.flat("ref_log_probs"), recorded.mask(), KLConfig(kind, 1.0))
    values.sum().backward()
    assert values.sum().item() == pytest.approx(VERL["kl"][kind]["loss"], rel=1e-12)
    torch.testing.assert_close(log_probs.grad, recorded.matrix(VERL["kl"][kind]["gradient"]), rtol=1e-12, atol=1e-13)


def test_value_loss() -> None:
    mask = recorded.mask()
    losses, metrics = value_loss(
        recorded.flat("values"), recorded.flat("old_values"), recorded.flat("token_rewards"), mask, ValueConfig(0.2)
    )
    assert (losses.sum() / mask.sum()).item() == pytest.approx(VERL["value"]["loss"], rel=1e-12)
    assert metrics["value/clip_fraction"].value() == pytest.approx(VERL["value"]["clip_fraction"], rel=1e-7)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "icepop"])
@pytest.mark.parametrize("normalise", [False, True])
def test_correction_weights(level: str, kind: str, normalise: bool) -> None:
    bounds = {"truncate": (WeightMode.TRUNCATE, 0.0, 2.0), "icepop": (WeightMode.MASK, 0.5, 5.0)}[kind]
    config = CorrectionConfig(bounds[0], RatioLevel(level), bounds[1], bounds[2], batch_normalise=normalise)
    tokens = recorded.tokens()
    given = (tokens.old_log_probs, tokens.rollout_log_probs, tokens.mask, Sequences.of(tokens), config)
    mean = mean_weight_share(*given).value() if normalise else None
    found = correct(*given, mean_weight=mean).weights
    expected = recorded.matrix(VERL["correction"][f"{level}/{kind}/{normalise}"])
    torch.testing.assert_close(found, expected, rtol=3e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("option", "level"),
    [("token_k1", RatioLevel.TOKEN), ("seq_sum_k1", RatioLevel.SEQUENCE), ("seq_mean_k1", RatioLevel.GEOMETRIC)],
)
def test_rejection_bounds_hold_for_train_over_rollout(option: str, level: RatioLevel) -> None:
    tokens = recorded.tokens()

    def kept(low: float, high: float) -> torch.Tensor:
        config = CorrectionConfig(WeightMode.NONE, rejection=RejectionConfig(level, low, high))
        return correct(tokens.old_log_probs, tokens.rollout_log_probs, tokens.mask, Sequences.of(tokens), config).keep

    reciprocal = recorded.matrix(VERL["rejection"][f"{option}/0.5_2.0"]).bool()
    assert kept(0.5, 2.0).tolist() == reciprocal.tolist()
    # verl bounds rollout/train: with bounds that are not each other's reciprocal it keeps [1 / high, 1 / low].
    literal = recorded.matrix(VERL["rejection"][f"{option}/0.8_1.5"]).bool()
    assert kept(1 / 1.5, 1 / 0.8).tolist() == literal.tolist()


def test_group_advantages() -> None:
    found = VERL["advantages"]
    rewards = torch.tensor(recorded.golden()["rewards"], dtype=torch.float64)
    groups, ids, mask = recorded.golden()["groups"], recorded.sequence_ids(), recorded.mask()
    for name, ours in (
        ("grpo", grpo_advantages(rewards, groups)),
        ("dr_grpo", grpo_advantages(rewards, groups, normalize_std=False)),
        ("rloo", rloo_advantages(rewards, groups)),
    ):
        expected = recorded.matrix(found[name])
        torch.testing.assert_close(torch.where(mask, ours[ids], 0.0), expected, rtol=1e-12, atol=1e-13)
    baseline = reinforce_plus_plus_baseline_advantages(rewards, groups, mask, ids)
    torch.testing.assert_close(baseline, recorded.matrix(found["reinforce_plus_plus_baseline"]), rtol=1e-7, atol=1e-9)


def test_a_group_of_one_differs_from_verl_on_purpose() -> None:
    assert VERL["advantages"]["group_of_one"] == pytest.approx(3.0, rel=1e-5)  # verl trains on the raw reward
    assert grpo_advantages([3.0], ["alone"]).tolist() == [0.0]


def test_returns_along_the_response() -> None:
    found, mask, ids = VERL["advantages"], recorded.mask(), recorded.sequence_ids()
    rewards, values = recorded.flat("token_rewards"), recorded.flat("values")
    advantages, returns = gae(rewards, values, mask, ids, gamma=0.99, lam=0.9)
    # verl was handed gamma and lambda as float32 tensors.
    torch.testing.assert_close(returns, recorded.matrix(found["gae_returns"]), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(whiten(advantages, mask), recorded.matrix(found["gae_whitened"]), rtol=1e-6, atol=1e-7)
    plus = reinforce_plus_plus_advantages(rewards, mask, ids, gamma=0.97)
    torch.testing.assert_close(plus, recorded.matrix(found["reinforce_plus_plus"]), rtol=1e-7, atol=1e-9)


def test_rewards_with_a_kl_penalty() -> None:
    mask, ids = recorded.mask(), recorded.sequence_ids()
    kl = recorded.flat("old_log_probs") - recorded.flat("ref_log_probs")
    penalty = token_rewards(torch.zeros(int(ids.max()) + 1), mask, ids, kl=kl, coefficient=0.1)
    shaped = torch.where(mask, recorded.flat("token_rewards") + penalty, 0.0)
    expected = torch.where(mask, recorded.matrix(VERL["rewards"]), 0.0)
    torch.testing.assert_close(shaped, expected, rtol=1e-12, atol=1e-13)
