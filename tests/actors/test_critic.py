"""The critic predicts float32 values where logits are read, and learns the returns it is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from logparity.actors import Critic, HFCritic, OptimizerConfig
from logparity.errors import InputError
from logparity.losses import ValueConfig, ValueObjective
from logparity.records import TokenBatch, ValueBatch

PLAIN = ValueObjective(ValueConfig(clip=None, coefficient=0.5))


def make(folder: Path, **settings: object) -> HFCritic:
    optimizer = settings.pop("optimizer", OptimizerConfig(lr=1e-2))
    return HFCritic(folder, PLAIN, optimizer, device="cpu", **({"dtype": "float32"} | settings))  # type: ignore[arg-type]


def returns_of(tokens: TokenBatch) -> ValueBatch:
    """Every token of sequence ``b`` returns ``b / 2``."""
    lengths = [len(ids) for ids in tokens.response_ids]
    returns = tuple(np.full(n, b / 2, np.float32) for b, n in enumerate(lengths))
    return ValueBatch(tokens, old_values=tuple(np.zeros(n, np.float32) for n in lengths), returns=returns)


def test_it_is_a_critic_whose_values_start_at_zero(tiny_folder: Path, ragged: TokenBatch) -> None:
    critic = make(tiny_folder, dtype="bfloat16")
    assert isinstance(critic, Critic)
    values = critic.values(ragged)
    assert [len(v) for v in values] == [len(ids) for ids in ragged.response_ids]
    assert all(v.dtype == np.float32 and not v.any() for v in values)


def test_values_are_read_at_the_position_before_each_token(tiny_folder: Path, ragged: TokenBatch) -> None:
    """Against one unpadded float64 forward per sequence."""
    critic = make(tiny_folder)
    critic.train_step(returns_of(ragged))
    body = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64).base_model
    weights = {name: w.double() for name, w in critic._model.state_dict().items()}
    body.load_state_dict({n.removeprefix("body."): w for n, w in weights.items() if n.startswith("body.")})
    predicted = critic.values(ragged)
    assert any(np.ptp(v) > 1e-4 for v in predicted if len(v))
    for prompt, response, values in zip(ragged.prompt_ids, ragged.response_ids, predicted, strict=True):
        hidden = body(torch.tensor([[*prompt, *response]])).last_hidden_state[0].detach()
        row = hidden @ weights["value_head.weight"][0] + weights["value_head.bias"][0]
        expected = row[len(prompt) - 1 : len(prompt) - 1 + len(response)].numpy()
        np.testing.assert_allclose(values, expected, atol=1e-5)


def test_it_learns_and_micro_batches_do_not_matter(tiny_folder: Path, ragged: TokenBatch) -> None:
    whole, parts = make(tiny_folder), make(tiny_folder, micro_batch_tokens=16)
    batch = returns_of(ragged)
    active = np.concatenate([r[m] for r, m in zip(batch.returns, ragged.response_mask, strict=True)])
    first = whole.train_step(batch)
    assert first["critic/loss"] == pytest.approx(0.5 * np.square(active, dtype=np.float64).mean(), rel=1e-6)
    assert parts.train_step(batch)["critic/grad_norm"] == pytest.approx(first["critic/grad_norm"], rel=1e-5)
    for _ in range(30):
        last = whole.train_step(batch)
    assert last["critic/loss"] < 0.2 * first["critic/loss"]


def test_it_resumes_bit_by_bit(tiny_folder: Path, ragged: TokenBatch, tmp_path: Path) -> None:
    critic, other = make(tiny_folder, dtype="bfloat16"), make(tiny_folder, dtype="bfloat16")
    batch = returns_of(ragged)
    critic.train_step(batch)
    critic.save_checkpoint(tmp_path)
    other.load_checkpoint(tmp_path)
    assert critic.train_step(batch) == other.train_step(batch)
    for a, b in zip(critic.values(ragged), other.values(ragged), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_without_an_active_token_is_refused(tiny_folder: Path, ragged: TokenBatch) -> None:
    empty = ragged.select([3])
    with pytest.raises(InputError, match="expected at least one active token"):
        make(tiny_folder).train_step(returns_of(empty))
