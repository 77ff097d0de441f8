"""Every policy loss and its gradient against plain Python arithmetic, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from logparity.losses import (
    CISPOConfig,
    ClipConfig,
    CorrectionConfig,
    EntropyConfig,
    GSPOConfig,
    KLConfig,
    OPSMConfig,
    PolicyObjective,
    RatioLevel,
    ReinforceConfig,
    RejectionConfig,
    SFTObjective,
    TokenTensors,
    WeightMode,
    count_denominators,
)
from tests.support.loss_batches import REDUCTIONS, random_tokens

Token = tuple[float, float]
"""Loss of a token and its derivative with respect to the token's log-prob."""


class Hand:
    """A batch as Python lists, active tokens only, with the sums a person would write down."""

    def __init__(self, tokens: TokenTensors) -> None:
        self.active = [i for i, on in enumerate(tokens.mask.tolist()) if on]
        self.sequence = tokens.sequence_ids.tolist()
        self.new = tokens.log_probs.tolist()
        self.old = tokens.old_log_probs.tolist()
        self.advantage = tokens.advantages.tolist()
        self.ref = tokens.ref_log_probs.tolist()
        self.rollout = tokens.rollout_log_probs.tolist()
        self.entropy = tokens.entropy.tolist()

    def mates(self, i: int) -> list[int]:
        return [j for j in self.active if self.sequence[j] == self.sequence[i]]

    def mean(self, i: int, left: Sequence[float], right: Sequence[float]) -> float:
        return sum(left[j] - right[j] for j in self.mates(i)) / len(self.mates(i))

    def weight(self, i: int, reduction: str) -> float:
        sequences = len({self.sequence[j] for j in self.active})
        return {
            "token_mean": 1 / len(self.active),
            "sequence_mean_token_mean": 1 / (sequences * len(self.mates(i))),
            "sequence_mean_token_sum": 1 / sequences,
            "fixed_length": 1 / (sequences * 12),
        }[reduction]

    def check(
        self, tokens: TokenTensors, objective: PolicyObjective | SFTObjective, token: Callable[[int], Token]
    ) -> None:
        for name, reduction in REDUCTIONS.items():
            fresh = replace(tokens, log_probs=tokens.log_probs.detach().clone().requires_grad_())
            loss, metrics = replace(objective, reduction=reduction, strict=True)(fresh, count_denominators([fresh]))
            loss.backward()
            expected = sum(self.weight(i, name) * token(i)[0] for i in self.active)
            gradient = [self.weight(i, name) * token(i)[1] if i in self.active else 0.0 for i in range(len(self.new))]
            assert loss.item() == pytest.approx(expected, rel=1e-12)
            assert metrics["loss"].value() == pytest.approx(expected, rel=1e-12)
            assert fresh.log_probs.grad.tolist() == pytest.approx(gradient, rel=1e-11, abs=1e-15)


@pytest.fixture
def tokens() -> TokenTensors:
    return random_tokens()


def clipped(ratio: float, advantage: float, low: float, high: float, dual: float | None = None) -> Token:
    bounded = min(max(ratio, low), high)
    plain, clip = -ratio * advantage, -bounded * advantage
    loss, slope = (plain, plain) if plain >= clip else (clip, 0.0)
    if dual is not None and advantage < 0 and loss > -dual * advantage:
        return -dual * advantage, 0.0
    return loss, slope


@pytest.mark.parametrize(
    ("low", "high", "dual"), [(0.2, 0.2, None), (0.2, 0.28, None), (0.1, 0.1, 1.2), (1.0, 0.6, 1.05)]
)
def test_clip(tokens: TokenTensors, low: float, high: float, dual: float | None) -> None:
    hand = Hand(tokens)

    def token(i: int) -> Token:
        return clipped(math.exp(hand.new[i] - hand.old[i]), hand.advantage[i], 1 - low, 1 + high, dual)

    hand.check(tokens, PolicyObjective(surrogate=ClipConfig(low, high, dual)), token)
    losses = [token(i) for i in hand.active]
    assert any(slope == 0 for _, slope in losses)  # the bounds are met in this batch
    assert any(slope != 0 for _, slope in losses)


def test_gspo(tokens: TokenTensors) -> None:
    hand = Hand(tokens)

    def token(i: int) -> Token:
        return clipped(math.exp(hand.mean(i, hand.new, hand.old)), hand.advantage[i], 0.9, 1.1)

    hand.check(tokens, PolicyObjective(surrogate=GSPOConfig(0.1, 0.1)), token)


def test_gspo_has_the_gradient_of_the_sequence_form_where_advantages_are_equal(tokens: TokenTensors) -> None:
    advantages = torch.tensor([1.3, -0.4, 0.7, -1.1, 0.2, -0.9], dtype=torch.float64)[tokens.sequence_ids]
    tokens = replace(tokens, advantages=advantages)
    objective = PolicyObjective(surrogate=GSPOConfig(0.1, 0.1), reduction=REDUCTIONS["sequence_mean_token_mean"])
    loss, _ = objective(tokens, count_denominators([tokens]))
    (gradient,) = torch.autograd.grad(loss, tokens.log_probs)
    log_probs = tokens.log_probs.detach().clone().requires_grad_()
    terms = []
    for sequence in range(tokens.num_sequences):
        own = tokens.mask & (tokens.sequence_ids == sequence)
        if own.any():
            ratio = (log_probs[own] - tokens.old_log_probs[own]).mean().exp()
            advantage = advantages[own][0]
            terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage))
    whole = torch.stack(terms).mean()
    whole.backward()
    torch.testing.assert_close(loss, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, log_probs.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (0.3, 0.3)])
def test_cispo(tokens: TokenTensors, low: float, high: float) -> None:
    hand = Hand(tokens)

    def token(i: int) -> Token:
        weight = min(max(math.exp(hand.new[i] - hand.old[i]), 1 - low), 1 + high)
        return -weight * hand.advantage[i] * hand.new[i], -weight * hand.advantage[i]

    hand.check(tokens, PolicyObjective(surrogate=CISPOConfig(low, high)), token)


def test_reinforce_and_sft(tokens: TokenTensors) -> None:
    hand = Hand(tokens)
    hand.check(
        tokens,
        PolicyObjective(surrogate=ReinforceConfig()),
        lambda i: (-hand.advantage[i] * hand.new[i], -hand.advantage[i]),
    )
    hand.check(tokens, SFTObjective(), lambda i: (-hand.new[i], -1.0))


def test_opsm(tokens: TokenTensors) -> None:
    hand, dropped = Hand(tokens), set()

    def token(i: int) -> Token:
        if hand.advantage[i] < 0 and hand.mean(i, hand.old, hand.new) > 0.02:
            dropped.add(i)
            return 0.0, 0.0
        return clipped(math.exp(hand.new[i] - hand.old[i]), hand.advantage[i], 0.8, 1.2)

    hand.check(tokens, PolicyObjective(opsm=OPSMConfig(0.02)), token)
    assert dropped


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("unbiased", [False, True])
def test_kl_and_entropy_terms(tokens: TokenTensors, estimator: str, unbiased: bool) -> None:
    hand = Hand(tokens)

    def kl(i: int) -> Token:
        d = hand.new[i] - hand.ref[i]
        value, slope = {"k1": (d, 1.0), "k2": (d * d / 2, d), "k3": (math.exp(-d) - 1 + d, 1 - math.exp(-d))}[estimator]
        ratio = math.exp(hand.new[i] - hand.old[i])
        return (ratio * value, ratio * (slope + value)) if unbiased else (value, slope)

    def token(i: int) -> Token:
        loss, slope = clipped(math.exp(hand.new[i] - hand.old[i]), hand.advantage[i], 0.8, 1.2)
        return loss + 0.3 * kl(i)[0] - 0.05 * hand.entropy[i], slope + 0.3 * kl(i)[1]

    objective = PolicyObjective(kl=KLConfig(estimator, 0.3, unbiased), entropy_bonus=EntropyConfig(0.05))
    hand.check(tokens, objective, token)
    tokens.entropy.grad = None
    loss, metrics = objective(tokens, count_denominators([tokens]))
    loss.backward()
    on = len(hand.active)
    wanted = [-0.05 / on if i in hand.active else 0.0 for i in range(len(hand.new))]
    assert tokens.entropy.grad.tolist() == pytest.approx(wanted, rel=1e-12, abs=0)
    assert metrics["kl/reference"].value() == pytest.approx(sum(kl(i)[0] for i in hand.active) / on)
    assert metrics["entropy"].value() == pytest.approx(sum(hand.entropy[i] for i in hand.active) / on)


CORRECTIONS = [
    CorrectionConfig(mode, level, 0.0 if mode == "truncate" else 0.6, 1.4, rejection, veto)
    for mode in WeightMode
    for level in RatioLevel
    for rejection, veto in (
        (None, None),
        (RejectionConfig(RatioLevel.TOKEN, 0.7, 2.0), None),
        (RejectionConfig(RatioLevel.GEOMETRIC, 0.6, 1.3), 0.2),
        (RejectionConfig(RatioLevel.SEQUENCE, 0.1, 3.0), 0.4),
    )
]


@pytest.mark.parametrize("config", CORRECTIONS)
def test_corrections(tokens: TokenTensors, config: CorrectionConfig) -> None:
    hand = Hand(tokens)

    def ratio(i: int, level: RatioLevel) -> float:
        mean = hand.mean(i, hand.old, hand.rollout)
        logs = {"token": hand.old[i] - hand.rollout[i], "sequence": mean * len(hand.mates(i)), "geometric": mean}
        return math.exp(logs[level.value])

    def weight(i: int) -> float:
        raw = ratio(i, config.level)
        return {
            "truncate": min(raw, config.high),
            "clip": min(max(raw, config.low), config.high),
            "mask": raw if config.low <= raw <= config.high else 0.0,
            "none": 1.0,
        }[config.mode.value]

    def rejected(i: int) -> bool:
        bounds, veto = config.rejection, config.token_veto or 0.0
        outside = bounds is not None and not bounds.low <= ratio(i, bounds.level) <= bounds.high
        return outside or any(ratio(j, RatioLevel.TOKEN) < veto for j in hand.mates(i))

    def token(i: int) -> Token:
        if rejected(i):
            return 0.0, 0.0
        loss, slope = clipped(math.exp(hand.new[i] - hand.old[i]), hand.advantage[i], 0.8, 1.2)
        kl = hand.new[i] - hand.ref[i]
        return weight(i) * loss + 0.1 * kl - 0.02 * hand.entropy[i], weight(i) * slope + 0.1

    objective = PolicyObjective(correction=config, kl=KLConfig("k1", 0.1), entropy_bonus=EntropyConfig(0.02))
    hand.check(tokens, objective, token)
    _, metrics = objective(tokens, count_denominators([tokens]))
    share = sum(rejected(i) for i in hand.active) / len(hand.active)
    assert metrics["correction/rejected_fraction"].value() == pytest.approx(share)
    assert metrics["correction/weight"].value() == pytest.approx(sum(map(weight, hand.active)) / len(hand.active))
