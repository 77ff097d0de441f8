"""Our losses, importance-sampling modes, and advantages against recorded values of the real TRL."""

from __future__ import annotations

import pytest
import torch

from logparity.losses import (
    CISPOConfig,
    ClipConfig,
    CorrectionConfig,
    GSPOConfig,
    KLConfig,
    OPSMConfig,
    PolicyObjective,
    RatioLevel,
    Reduction,
    ReductionConfig,
    Sequences,
    WeightMode,
    correct,
    count_denominators,
    grpo_advantages,
    opsm_keep,
    rloo_advantages,
)
from tests.losses import golden_batch as recorded

TRL = recorded.golden()["trl"]
CLIP = ClipConfig(0.2, 0.28)
SEQUENCES = ReductionConfig(Reduction.SEQUENCE_MEAN_TOKEN_MEAN)
TOKENS = ReductionConfig(Reduction.TOKEN_MEAN)
OBJECTIVES = {
    "grpo": PolicyObjective(surrogate=CLIP, reduction=SEQUENCES),
    "bnpo": PolicyObjective(surrogate=CLIP, reduction=TOKENS),
    "dapo": PolicyObjective(surrogate=CLIP, reduction=TOKENS),
    "dr_grpo": PolicyObjective(surrogate=CLIP, reduction=ReductionConfig(Reduction.FIXED_LENGTH, 12)),
    "grpo_delta": PolicyObjective(surrogate=ClipConfig(0.2, 0.28, dual_clip=1.5), reduction=SEQUENCES),
    "grpo_kl": PolicyObjective(surrogate=CLIP, kl=KLConfig("k3", 0.1), reduction=SEQUENCES),
    "grpo_kl_unbiased": PolicyObjective(surrogate=CLIP, kl=KLConfig("k3", 0.1, unbiased=True), reduction=SEQUENCES),
    # TRL's epsilon_high is the upper bound itself, 1.3, and it has no lower one.
    "cispo": PolicyObjective(surrogate=CISPOConfig(1.0, 0.3), reduction=TOKENS),
    "gspo": PolicyObjective(surrogate=GSPOConfig(0.03, 0.04), reduction=SEQUENCES),
    "opsm": PolicyObjective(surrogate=CLIP, reduction=SEQUENCES),
}


@pytest.mark.parametrize("case", sorted(OBJECTIVES))
def test_loss_types(case: str) -> None:
    expected, tokens, objective = TRL["policy"][case], recorded.tokens(), OBJECTIVES[case]
    if case == "opsm":
        objective = PolicyObjective(surrogate=CLIP, reduction=SEQUENCES, opsm=OPSMConfig(0.05))
        given = (tokens.log_probs, tokens.old_log_probs, tokens.advantages, tokens.mask, Sequences.of(tokens))
        assert opsm_keep(*given, OPSMConfig(0.05))[1]["policy/opsm_dropped_fraction"].value() > 0
    loss, _ = objective(tokens, count_denominators([tokens]))
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-12)
    torch.testing.assert_close(tokens.log_probs.grad, recorded.matrix(expected["gradient"]), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_importance_sampling_modes(level: str, mode: str) -> None:
    low, high = {"truncate": (0.0, 2.0), "mask": (0.5, 5.0)}[mode]
    config, tokens = CorrectionConfig(WeightMode(mode), RatioLevel(level), low, high), recorded.tokens()
    found = correct(tokens.old_log_probs, tokens.rollout_log_probs, tokens.mask, Sequences.of(tokens), config).weights
    expected = torch.where(tokens.mask, recorded.matrix(TRL["importance_sampling"][f"{level}/{mode}"]), 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_advantages() -> None:
    rewards, groups = torch.tensor(recorded.golden()["rewards"], dtype=torch.float64), recorded.golden()["groups"]
    found = TRL["advantages"]
    for ours, name in (
        (grpo_advantages(rewards, groups, epsilon=1e-4), "grpo/group"),
        (grpo_advantages(rewards, groups, normalize_std=False), "grpo/none"),
        (rloo_advantages(rewards, groups), "rloo"),
    ):
        torch.testing.assert_close(ours, torch.tensor(found[name], dtype=torch.float64), rtol=1e-12, atol=1e-14)
