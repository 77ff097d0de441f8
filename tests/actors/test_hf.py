from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from logparity.actors import Actor, HFActor, OptimizerConfig
from logparity.actors.masters import MasterWeights
from logparity.errors import InputError, ModelError, RunFolderError
from logparity.losses import CorrectionConfig, PolicyObjective, ReinforceConfig
from logparity.losses.base import Denominators, EntropyMode, LogitPrecision, Metrics, Ratio, TokenTensors
from logparity.models.loading import load_causal_lm
from logparity.models.weights import named_weights
from logparity.records import TokenBatch, TrainingBatch
from tests.support.tiny_models import byte_tokenizer, save_tiny_gpt2

Signal = Callable[..., TrainingBatch]


@dataclass(frozen=True)
class Reinforce:
    """``-sum(A * (log p + c * entropy)) / tokens``: small enough to repeat by hand."""

    entropy: EntropyMode = EntropyMode.NONE
    precision: LogitPrecision = LogitPrecision.MODEL
    temperature: float | None = None
    scale: float = 1.0

    def __call__(self, tokens: TokenTensors, denominators: Denominators) -> tuple[torch.Tensor, Metrics]:
        gain = tokens.log_probs
        if self.entropy is EntropyMode.GRAD:
            gain = gain + 0.1 * tokens.entropy
        loss = -self.scale * (tokens.advantages * gain).sum() / denominators.tokens
        return loss, {"mean_log_prob": Ratio(tokens.log_probs.detach().sum(), denominators.tokens * 0 + len(gain))}


def make(folder: Path, objective: object = None, **settings: object) -> HFActor:
    optimizer = settings.pop("optimizer", OptimizerConfig(lr=1e-3))
    return HFActor(folder, objective, optimizer, device="cpu", **({"dtype": "float32"} | settings))


def true_rows(model: torch.nn.Module, batch: TokenBatch, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tempered log-softmax rows and ids of one response: a plain, unpadded forward in the model's own dtype."""
    ids = torch.tensor([[*batch.prompt_ids[b], *batch.response_ids[b]]])
    logits = model(ids).logits[0] / float(batch.temperature[b])
    first = len(batch.prompt_ids[b])
    rows = torch.stack([torch.log_softmax(logits[t - 1], -1) for t in range(first, ids.shape[1])] or [logits[0]])
    return rows[: ids.shape[1] - first], ids[0, first:]


def true_loss(model: torch.nn.Module, batch: TrainingBatch, entropy: float = 0.0) -> torch.Tensor:
    """The loss of `Reinforce`, token by token, in the model's dtype."""
    total, count = 0.0, 0
    for b, mask in enumerate(batch.tokens.response_mask):
        rows, ids = true_rows(model, batch.tokens, b)
        for j in np.flatnonzero(mask):
            gain = rows[j, ids[j]] - entropy * (rows[j].exp() * rows[j]).sum()
            total, count = total - float(batch.advantages[b][j]) * gain, count + 1
    return total / count


@pytest.fixture(scope="module")
def exact(tiny_folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)


def test_it_is_an_actor(tiny_folder: Path) -> None:
    assert isinstance(make(tiny_folder), Actor)


@pytest.mark.parametrize("budget", [16, 40, 4096])
def test_scores_are_those_of_a_plain_forward(
    tiny_folder: Path, exact: torch.nn.Module, ragged: TokenBatch, budget: int
) -> None:
    scored = make(tiny_folder, micro_batch_tokens=budget).score(ragged, entropy=True)
    assert scored.keys == ragged.keys
    assert [len(v) for v in scored.log_probs] == [len(r) for r in ragged.response_ids]
    for b in range(len(ragged)):
        with torch.no_grad():
            rows, ids = true_rows(exact, ragged, b)
        expected = rows.gather(1, ids[:, None])[:, 0] if len(ids) else torch.zeros(0)
        np.testing.assert_allclose(scored.log_probs[b], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scored.entropy[b], -(rows.exp() * rows).sum(-1), rtol=1e-5, atol=1e-5)
        assert scored.log_probs[b].dtype == scored.entropy[b].dtype == np.float32


def test_a_family_with_absolute_positions_is_scored_alike(tmp_path: Path, ragged: TokenBatch) -> None:
    folder = save_tiny_gpt2(tmp_path)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    scored = make(folder).score(ragged)
    for b in range(len(ragged)):
        with torch.no_grad():
            rows, ids = true_rows(exact, ragged, b)
        np.testing.assert_allclose(scored.log_probs[b], rows.gather(1, ids[:, None])[:, 0], rtol=1e-5, atol=1e-5)


def test_batching_changes_scores_by_rounding_only(tiny_folder: Path, ragged: TokenBatch) -> None:
    actor = make(tiny_folder, micro_batch_tokens=4096)
    together = actor.score(ragged)
    for b in range(len(ragged)):
        np.testing.assert_allclose(actor.score(ragged.select([b])).log_probs[0], together.log_probs[b], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_call_gives_the_same_bits(tiny_folder: Path, ragged: TokenBatch, dtype: str) -> None:
    actor = make(tiny_folder, dtype=dtype)
    first, second = actor.score(ragged), actor.score(ragged)
    assert [a.tobytes() for a in first.log_probs] == [b.tobytes() for b in second.log_probs]


def test_a_head_of_several_slices_scores_alike(
    tiny_folder: Path, ragged: TokenBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(tiny_folder).score(ragged)
    monkeypatch.setattr("logparity.actors.forward.HEAD_ROWS", 3)
    sliced = make(tiny_folder).score(ragged)
    for a, b in zip(whole.log_probs, sliced.log_probs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("recompute", ["nothing", "gradient_checkpointing", "recompute_loss"])
@pytest.mark.parametrize("budget", [16, 4096])
def test_one_step_moves_the_weights_along_the_true_gradient(
    tiny_folder: Path, ragged: TokenBatch, signal: Signal, budget: int, recompute: str
) -> None:
    batch = signal(ragged)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)
    loss = true_loss(model, batch, entropy=0.1)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    # Without momentum and with a large eps AdamW is plain gradient descent: w - lr / eps * g.
    plain = OptimizerConfig(lr=1.0, betas=(0.0, 0.0), eps=1e6, max_grad_norm=0.0)
    actor = make(
        tiny_folder,
        Reinforce(entropy=EntropyMode.GRAD, scale=1e6),
        optimizer=plain,
        micro_batch_tokens=budget,
        **({} if recompute == "nothing" else {recompute: True}),
    )
    before = {name: w.clone() for name, w in actor.export_weights()}
    metrics = actor.train_step(batch)
    assert metrics["actor/loss"] == pytest.approx(1e6 * loss.item(), rel=1e-5)
    assert metrics["actor/grad_norm"] == pytest.approx(1e6 * norm.item(), rel=1e-5)
    grads = {name: p.grad for name, p in named_weights(model)}
    for name, weight in actor.export_weights():
        g = 1e6 * grads[name]
        expected = before[name].double() - g / (g.abs() + 1e6)
        torch.testing.assert_close(weight.double(), expected, rtol=1e-4, atol=2e-6)
    assert actor.weight_version == 1
    assert metrics["actor/skipped_steps"] == 0


def test_metrics_are_means_over_the_whole_step(tiny_folder: Path, ragged: TokenBatch, signal: Signal) -> None:
    actor = make(tiny_folder, Reinforce(), micro_batch_tokens=16)
    scored = actor.score(ragged)
    active = np.concatenate([v[m] for v, m in zip(scored.log_probs, ragged.response_mask, strict=True)])
    assert actor.train_step(signal(ragged))["mean_log_prob"] == pytest.approx(active.mean(), abs=1e-5)


def test_what_masked_tokens_hold_does_not_matter(tiny_folder: Path, ragged: TokenBatch, signal: Signal) -> None:
    batch = signal(ragged)
    poisoned = replace(
        batch,
        advantages=tuple(
            np.where(m, a, np.nan).astype(np.float32)
            for a, m in zip(batch.advantages, ragged.response_mask, strict=True)
        ),
    )
    clean, dirty = make(tiny_folder, Reinforce()), make(tiny_folder, Reinforce())
    assert clean.train_step(batch) == dirty.train_step(poisoned)
    for (_, a), (_, b) in zip(clean.export_weights(), dirty.export_weights(), strict=True):
        assert torch.equal(a, b)


def test_the_objective_decides_the_temperature(tiny_folder: Path, ragged: TokenBatch, signal: Signal) -> None:
    batch = signal(ragged)
    at_one = make(tiny_folder, Reinforce()).train_step(signal(ragged.at_temperature(1.0)))
    assert make(tiny_folder, Reinforce(temperature=1.0)).train_step(batch) == at_one
    assert make(tiny_folder, Reinforce()).train_step(batch) != at_one


def test_fp32_logits_on_request_change_nothing_but_rounding(
    tiny_folder: Path, ragged: TokenBatch, signal: Signal
) -> None:
    model, full = (make(tiny_folder, Reinforce(precision=p), dtype="bfloat16") for p in LogitPrecision)
    a, b = model.train_step(signal(ragged)), full.train_step(signal(ragged))
    assert a["actor/loss"] == b["actor/loss"]  # the upcast of bfloat16 logits is exact
    assert a["actor/grad_norm"] == pytest.approx(b["actor/grad_norm"], rel=1e-2)


def test_the_policy_objective_trains(tiny_folder: Path, ragged: TokenBatch, signal: Signal) -> None:
    actor = make(tiny_folder, PolicyObjective(), dtype="bfloat16", optimizer=OptimizerConfig(lr=3e-3))
    first = actor.score(ragged)
    batch = replace(signal(ragged), old_log_probs=first.log_probs)
    metrics = actor.train_step(batch)
    assert np.isfinite(list(metrics.values())).all()
    after = actor.score(ragged)
    gain = sum(
        float((a * (new - old))[m].sum())
        for a, new, old, m in zip(batch.advantages, after.log_probs, first.log_probs, ragged.response_mask, strict=True)
    )
    assert gain > 0.1


def test_correction_weights_are_divided_by_their_mean_over_the_whole_step(
    tiny_folder: Path, ragged: TokenBatch, signal: Signal
) -> None:
    batch = signal(ragged)
    batch = replace(
        batch, rollout_log_probs=tuple(v + np.float32(0.3) * (i - 2) for i, v in enumerate(batch.old_log_probs))
    )
    objective = PolicyObjective(correction=CorrectionConfig(batch_normalise=True), surrogate=ReinforceConfig())
    steps = [make(tiny_folder, objective, micro_batch_tokens=n).train_step(batch) for n in (16, 4096)]
    exact = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)
    weights = [np.full(m.sum(), min(np.exp(-0.3 * (i - 2)), 2.0)) for i, m in enumerate(ragged.response_mask)]
    mean = np.concatenate(weights).mean()
    weighted = replace(
        batch,
        advantages=tuple(
            (a * (w[0] / mean if len(w) else 1)).astype(np.float32)
            for a, w in zip(batch.advantages, weights, strict=True)
        ),
    )
    with torch.no_grad():
        expected = true_loss(exact, weighted).item()
    for metrics in steps:
        assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(InputError, match="rollout_log_probs: expected one array per sequence"):
        make(tiny_folder, objective).train_step(signal(ragged))


def test_bfloat16_updates_below_its_resolution_are_not_lost(
    tiny_folder: Path, ragged: TokenBatch, signal: Signal
) -> None:
    actor = make(tiny_folder, Reinforce(), dtype="bfloat16", optimizer=OptimizerConfig(lr=1e-5))
    start = [w.clone() for w in actor._weights.masters.values()]
    exported = [w.clone() for _, w in actor.export_weights()]
    actor.train_step(signal(ragged))
    moved = [(w != s).float().mean() for w, s in zip(actor._weights.masters.values(), start, strict=True) if w.ndim > 1]
    assert min(moved) > 0.5
    names = zip(actor.export_weights(), actor._weights.masters.values(), exported, strict=True)
    for (_, weight), master, old in names:
        assert weight.dtype is torch.bfloat16
        assert torch.equal(weight, master.bfloat16())
        assert (weight != old).float().mean() < 0.5


def test_gradients_of_micro_batches_add_up_in_float32(tiny_folder: Path) -> None:
    """In bfloat16 a sum of ones stalls at 256."""
    weights = MasterWeights(
        lambda dtype: load_causal_lm(tiny_folder, dtype=dtype, device=torch.device("cpu")), torch.bfloat16
    )
    for _ in range(300):
        torch.stack([p.float().sum() for p in weights.model.parameters()]).sum().backward()
    for master in weights.masters.values():
        assert master.grad.dtype is torch.float32
        assert (master.grad == 300).all()
    assert all(p.grad is None for p in weights.model.parameters())


def test_a_step_with_a_bad_gradient_is_skipped_and_named(tiny_folder: Path, ragged: TokenBatch, signal: Signal) -> None:
    actor = make(tiny_folder, Reinforce(scale=float("inf")), dtype="bfloat16")
    before = [w.clone() for _, w in actor.export_weights()]
    with pytest.warns(RuntimeWarning, match=r"step skipped: .*non-finite gradient in model\.embed_tokens\.weight"):
        metrics = actor.train_step(signal(ragged))
    assert metrics["actor/skipped_steps"] == 1
    assert actor.weight_version == 0
    assert all(torch.equal(w, b) for (_, w), b in zip(actor.export_weights(), before, strict=True))


def test_the_reference_stays_where_it_was(tiny_folder: Path, ragged: TokenBatch, signal: Signal) -> None:
    actor = make(tiny_folder, Reinforce(), reference=True)
    start = actor.score(ragged)
    actor.train_step(signal(ragged))
    reference = actor.score_reference(ragged)
    assert [a.tolist() for a in reference.log_probs] == [b.tolist() for b in start.log_probs]
    assert (reference.weight_version, actor.score(ragged).weight_version) == (0, 1)
    assert [a.tolist() for a in actor.score(ragged).log_probs] != [b.tolist() for b in start.log_probs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_actor_continues_with_the_same_bits(
    tiny_folder: Path, tmp_path: Path, ragged: TokenBatch, signal: Signal, dtype: str
) -> None:
    def fresh() -> HFActor:
        return make(tiny_folder, Reinforce(), dtype=dtype, optimizer=OptimizerConfig(lr=1e-3, warmup_steps=3))

    straight = fresh()
    straight.train_step(signal(ragged))
    straight.save_checkpoint(tmp_path)
    expected = straight.train_step(signal(ragged, seed=1))
    resumed = fresh()
    resumed.load_checkpoint(tmp_path)
    assert resumed.weight_version == 1
    assert resumed.train_step(signal(ragged, seed=1)) == expected
    for (_, a), (_, b) in zip(straight.export_weights(), resumed.export_weights(), strict=True):
        assert torch.equal(a, b)
    assert torch.load(tmp_path / "optimizer.pt", weights_only=True)["steps"] == 1


def test_checkpoints_that_do_not_fit_are_refused(tiny_folder: Path, untied_folder: Path, tmp_path: Path) -> None:
    actor = make(tiny_folder)
    with pytest.raises(RunFolderError, match="does not exist"):
        actor.save_checkpoint(tmp_path / "nowhere")
    actor.save_checkpoint(tmp_path)
    with pytest.raises(RunFolderError, match="not empty"):
        actor.save_checkpoint(tmp_path)
    with pytest.raises(ModelError, match=r"belongs to another model: lm_head\.weight"):
        make(untied_folder).load_checkpoint(tmp_path)
    (tmp_path / "masters.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match="cannot be read"):
        actor.load_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        actor.load_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("folder", ["tiny_folder", "untied_folder"])
def test_exported_weights_load_into_another_model(
    request: pytest.FixtureRequest, folder: str, ragged: TokenBatch, signal: Signal, tmp_path: Path
) -> None:
    path = request.getfixturevalue(folder)
    actor = make(path, Reinforce())
    actor.train_step(signal(ragged))
    model = load_causal_lm(path, dtype=torch.float32, device=torch.device("cpu"))
    model.load_state_dict(dict(actor.export_weights()), strict=False)
    model.save_pretrained(tmp_path)
    for file in path.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    a, b = actor.score(ragged), make(tmp_path).score(ragged)
    assert [v.tolist() for v in a.log_probs] == [v.tolist() for v in b.log_probs]


def batch_of(prompt: Sequence[int], response: Sequence[int], mask: Sequence[bool] | None = None) -> TokenBatch:
    ones = np.ones(len(response), bool) if mask is None else np.array(mask)
    return TokenBatch(("k",), (np.array(prompt, dtype=np.int64),), (np.array(response),), (ones,), np.ones(1))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (batch_of([], [1, 2]), "prompt of 'k': expected at least one id"),
        (batch_of([1], [2, 259]), r"response of 'k': expected ids in \[0, 259\), got 259 at position 1"),
        (batch_of([1] * 100, [1] * 29), r"sequence 'k': 100 prompt \+ 29 response tokens = 129, .*context is 128"),
    ],
)
def test_sequences_that_cannot_be_scored_are_refused(
    tiny_folder: Path, signal: Signal, batch: TokenBatch, message: str
) -> None:
    actor = make(tiny_folder, Reinforce())
    with pytest.raises(InputError, match=message):
        actor.score(batch)
    with pytest.raises(InputError, match=message):
        actor.train_step(signal(batch))


def test_other_bad_input_is_refused(tiny_folder: Path, signal: Signal) -> None:
    with pytest.raises(InputError, match="expected at least one active token, got none"):
        make(tiny_folder, Reinforce()).train_step(signal(batch_of([1], [2, 3], [False, False])))
    with pytest.raises(InputError, match="no objective"):
        make(tiny_folder).train_step(signal(batch_of([1], [2])))
    with pytest.raises(InputError, match="reference=True"):
        make(tiny_folder).score_reference(batch_of([1], [2]))
    with pytest.raises(InputError, match="float16 needs loss scaling"):
        make(tiny_folder, dtype="float16")
    with pytest.raises(InputError, match="micro_batch_tokens"):
        make(tiny_folder, micro_batch_tokens=0)


def test_an_empty_batch_scores_to_nothing(tiny_folder: Path, ragged: TokenBatch) -> None:
    scored = make(tiny_folder).score(ragged.select([]), entropy=True)
    assert (scored.keys, scored.log_probs, scored.entropy) == ((), (), ())


def test_a_family_that_scales_its_logits_is_scored_as_it_samples(tmp_path: Path, ragged: TokenBatch) -> None:
    """Gemma caps logits after the head; scores must agree with the model's own forward."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, final_logit_softcapping=2.0,
        initializer_range=0.5, attn_logit_softcapping=None, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["final_logit_softcapping"] == 2.0
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    scored = make(tmp_path).score(ragged)
    for b in range(len(ragged)):
        with torch.no_grad():
            rows, ids = true_rows(exact, ragged, b)
        np.testing.assert_allclose(scored.log_probs[b], rows.gather(1, ids[:, None])[:, 0], rtol=1e-5, atol=1e-5)


def test_a_real_token_with_the_padding_id_is_trained_too(tiny_folder: Path, ragged: TokenBatch, signal: Signal) -> None:
    """Transformers drops the gradient of the padding id's embedding, also where that id is part of a sequence."""
    marked = replace(ragged, prompt_ids=tuple(np.zeros_like(ids) for ids in ragged.prompt_ids))
    batch = signal(marked)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)
    assert model.get_input_embeddings().padding_idx == 0
    model.get_input_embeddings().padding_idx = None
    true_loss(model, batch).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert make(tiny_folder, Reinforce()).train_step(batch)["actor/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
