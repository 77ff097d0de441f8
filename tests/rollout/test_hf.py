from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from logparity.errors import InputError, NonFiniteError
from logparity.models.loading import load_causal_lm
from logparity.models.weights import named_weights
from logparity.records import FinishReason, LogProbMode, Rollout, SamplingSettings
from logparity.rollout import HFRolloutEngine, Request, RolloutEngine
from tests.support.tiny_models import save_tiny_gpt2

PROMPTS = [[1, 70, 80], [1, 71], [1, 90, 91, 92, 93, 94, 95], [1, 70, 80]]


def requests(count: int = 8) -> list[Request]:
    return [Request(f"s{i}", f"g{i % 4}", np.array(PROMPTS[i % 4]), seed=100 + i) for i in range(count)]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> HFRolloutEngine:
    return HFRolloutEngine(tiny_folder, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)


def teacher_forced(model: torch.nn.Module, rollout: Rollout, temperature: float) -> np.ndarray:
    """Log-probs of a response from one uncached, unpadded float64 forward."""
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0] / temperature
    first = len(rollout.prompt_ids)
    return np.array([torch.log_softmax(logits[t - 1], -1)[ids[0, t]].item() for t in range(first, ids.shape[1])])


@pytest.fixture
def batch_sizes(engine: HFRolloutEngine) -> Iterator[list[tuple[int, int]]]:
    """(rows, tokens) of every forward that the engine makes."""
    shapes: list[tuple[int, int]] = []
    hook = engine._model.register_forward_pre_hook(
        lambda _m, _a, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    hook.remove()


def test_it_is_a_rollout_engine(engine: HFRolloutEngine) -> None:
    assert isinstance(engine, RolloutEngine)
    assert (engine.info.name, engine.info.dtype) == ("transformers", "float32")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_a_plain_forward(
    engine: HFRolloutEngine, model: torch.nn.Module, temperature: float
) -> None:
    rollouts = engine.generate(requests(), SamplingSettings(temperature=temperature, max_new_tokens=12))
    assert [r.key for r in rollouts] == [r.key for r in requests()]
    for rollout in rollouts:
        expected = teacher_forced(model, rollout, temperature)
        np.testing.assert_allclose(rollout.rollout_log_probs, expected, atol=2e-5)


def test_left_padding_moves_no_position(tmp_path: Path) -> None:
    """A family with absolute positions notices a wrong one; rotary models forgive a shift."""
    folder = save_tiny_gpt2(tmp_path)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    engine = HFRolloutEngine(folder, dtype="float32", device="cpu")
    for rollout in engine.generate(requests(), SamplingSettings(max_new_tokens=12)):
        np.testing.assert_allclose(rollout.rollout_log_probs, teacher_forced(exact, rollout, 1.0), atol=2e-5)


def test_raw_mode_reports_log_probs_at_temperature_one(tiny_folder: Path, model: torch.nn.Module) -> None:
    raw = HFRolloutEngine(tiny_folder, dtype="float32", device="cpu", log_prob_mode=LogProbMode.RAW)
    for rollout in raw.generate(requests(), SamplingSettings(temperature=0.5, top_k=8, max_new_tokens=6)):
        np.testing.assert_allclose(rollout.rollout_log_probs, teacher_forced(model, rollout, 1.0), atol=2e-5)
        assert rollout.engine.log_prob_mode is LogProbMode.RAW


def test_greedy_tokens_are_those_of_transformers_generate(engine: HFRolloutEngine, tiny_folder: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    for rollout in engine.generate(requests(4), SamplingSettings(top_k=1, max_new_tokens=10)):
        ids = torch.tensor([rollout.prompt_ids.tolist()])
        expected = reference.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10, eos_token_id=None
        )
        assert rollout.response_ids.tolist() == expected[0, ids.shape[1] :].tolist()
        np.testing.assert_array_equal(rollout.rollout_log_probs, np.zeros(10))


def test_a_response_depends_on_its_own_seed_alone(tiny_folder: Path, engine: HFRolloutEngine) -> None:
    settings = SamplingSettings(max_new_tokens=10)
    together = engine.generate(requests(), settings)
    small = HFRolloutEngine(tiny_folder, dtype="float32", device="cpu", batch_size=3)
    for others in (small.generate(requests(), settings), engine.generate(requests()[::-1], settings)[::-1]):
        for a, b in zip(together, others, strict=True):
            assert a.response_ids.tolist() == b.response_ids.tolist()
    alone = engine.generate(requests()[5:6], settings)[0]
    assert alone.response_ids.tolist() == together[5].response_ids.tolist()
    assert len({tuple(r.response_ids) for r in together}) == len(together)


def test_the_same_call_gives_the_same_bits(engine: HFRolloutEngine) -> None:
    first, second = (engine.generate(requests(), SamplingSettings(max_new_tokens=8)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.rollout_log_probs.tobytes() == b.rollout_log_probs.tobytes()


def test_equal_prompts_are_read_once(engine: HFRolloutEngine, batch_sizes: list[tuple[int, int]]) -> None:
    engine.generate(requests(8), SamplingSettings(max_new_tokens=3))
    assert batch_sizes == [(3, 7), (8, 1), (8, 1)]


def test_a_stop_token_ends_its_response_and_belongs_to_it(
    engine: HFRolloutEngine, batch_sizes: list[tuple[int, int]]
) -> None:
    free = engine.generate(requests(), SamplingSettings(max_new_tokens=12))
    stops = tuple({int(r.response_ids[3]) for r in free[:6]})
    batch_sizes.clear()
    seen: list[tuple[int, int]] = []
    settings = SamplingSettings(max_new_tokens=12, stop_token_ids=stops)
    stopped = engine.generate(requests(), settings, lambda done, total: seen.append((done, total)))
    for before, after in zip(free, stopped, strict=True):
        hits = np.flatnonzero(np.isin(before.response_ids, stops))
        length = int(hits[0]) + 1 if len(hits) else 12
        assert after.response_ids.tolist() == before.response_ids[:length].tolist()
        assert after.finish_reason is (FinishReason.STOP if len(hits) else FinishReason.LENGTH)
        np.testing.assert_allclose(after.rollout_log_probs, before.rollout_log_probs[:length], atol=1e-5)
    assert seen == [(i + 1, 8) for i in range(8)]
    assert batch_sizes[-1][0] < 8  # finished rows left the batch


def test_new_weights_are_sampled_from_under_their_version(tiny_folder: Path) -> None:
    engine = HFRolloutEngine(tiny_folder, dtype="float32", device="cpu")
    settings = SamplingSettings(max_new_tokens=6)
    old = engine.generate(requests(), settings)
    changed = load_causal_lm(tiny_folder, dtype=torch.float32, device=torch.device("cpu"))
    with torch.no_grad():
        for weight in changed.parameters():
            weight.mul_(1.1)
    engine.update_weights(named_weights(changed), version=7)
    new = engine.generate(requests(), settings)
    changed.double()
    assert {r.weight_version for r in old} == {0}
    assert {r.weight_version for r in new} == {7} == {engine.weight_version}
    for rollout in new:
        expected = teacher_forced(changed, rollout, 1.0)
        np.testing.assert_allclose(rollout.rollout_log_probs, expected, atol=2e-5)
    with pytest.raises(InputError, match="missing"):
        engine.update_weights([], version=8)
    assert engine.weight_version == 7


def test_bfloat16_reports_float32_log_probs_of_its_own_logits(tiny_folder: Path, model: torch.nn.Module) -> None:
    engine = HFRolloutEngine(tiny_folder, device="cpu")
    gaps = [
        np.abs(r.rollout_log_probs - teacher_forced(model, r, 1.0))
        for r in engine.generate(requests(), SamplingSettings(max_new_tokens=12))
    ]
    assert 1e-4 < np.concatenate(gaps).mean() < 0.2


def test_an_empty_list_gives_an_empty_list(engine: HFRolloutEngine) -> None:
    assert engine.generate([], SamplingSettings()) == []


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([1] * 100, 29, r"100 prompt tokens \+ 29 new tokens = 129, but the model's context is 128"),
        ([1, 259], 4, r"expected ids in \[0, 259\), got 259"),
        ([-1, 5], 4, r"expected ids in \[0, 259\), got -1"),
        ([], 4, "expected at least one id, got none"),
    ],
)
def test_prompts_that_cannot_be_sampled_from_are_refused(
    engine: HFRolloutEngine, batch_sizes: list[tuple[int, int]], prompt: list[int], new: int, message: str
) -> None:
    bad = Request("bad", "g", np.array(prompt, dtype=np.int64), 0)
    with pytest.raises(InputError, match=f"prompt of 'bad': {message}"):
        engine.generate([*requests(), bad], SamplingSettings(max_new_tokens=new))
    assert batch_sizes == []  # nothing ran


def test_the_whole_context_can_be_used(engine: HFRolloutEngine) -> None:
    full = Request("full", "g", np.ones(100, dtype=np.int64), 0)
    assert len(engine.generate([full], SamplingSettings(max_new_tokens=28))[0]) == 28


def test_broken_weights_are_named_not_sampled_from(tiny_folder: Path) -> None:
    engine = HFRolloutEngine(tiny_folder, dtype="float32", device="cpu")
    with torch.no_grad():
        engine._model.get_output_embeddings().weight[5].fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"sampling 's0': expected finite logits.*response token 0"):
        engine.generate(requests(1), SamplingSettings())


def test_a_batch_size_of_zero_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match="batch_size: expected >= 1, got 0"):
        HFRolloutEngine(tiny_folder, batch_size=0)


@pytest.mark.model
def test_the_real_model_answers_in_words(smollm2_folder: Path) -> None:
    engine = HFRolloutEngine(smollm2_folder, device="cpu")
    prompt = engine._tokenizer("The capital of France is").input_ids
    rollout = engine.generate([Request("s", "g", np.array(prompt), 0)], SamplingSettings(top_k=1, max_new_tokens=3))[0]
    assert "Paris" in (rollout.text or "")
