"""What the Megatron actor promises beyond equal numbers: precision, skipped steps, checkpoints, export, critics."""

from __future__ import annotations

import copy
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logparity.actors.critic import HFCritic
from logparity.actors.hf import HFActor
from logparity.actors.optimizer import OptimizerConfig
from logparity.losses import (
    CorrectionConfig,
    GSPOConfig,
    PolicyObjective,
    RatioLevel,
    ReductionConfig,
    RejectionConfig,
    SFTObjective,
    ValueObjective,
)
from logparity.losses.base import Denominators, Metrics, TokenTensors
from logparity.records import FloatArray, TokenBatch, ValueBatch
from tests.support.megatron_truth import (
    OBJECTIVE,
    OPTIMIZER,
    Truth,
    compute_truth,
    largest_gap,
    training_batch,
)
from tests.support.spawn import spawn
from tests.support.tiny_families import save_family

pytestmark = pytest.mark.distributed


@dataclass(frozen=True)
class CriticTruth:
    """Two steps of the Transformers critic."""

    batch: ValueBatch
    values: tuple[FloatArray, ...]


@pytest.fixture(scope="module")
def truth(families: dict[str, Path]) -> Truth:
    return compute_truth(families["llama"])


@pytest.fixture(scope="module")
def critic_truth(truth: Truth) -> CriticTruth:
    tokens = truth.batch.tokens
    rng = np.random.default_rng(7)
    returns = tuple(rng.normal(size=len(r)).astype(np.float32) for r in tokens.response_ids)
    batch = ValueBatch(tokens, tuple(np.zeros_like(r) for r in returns), returns)
    critic = HFCritic(truth.folder, ValueObjective(), CRITIC_OPTIMIZER, dtype="float32", device="cpu")
    for _ in range(2):
        critic.train_step(batch)
    return CriticTruth(batch, critic.values(tokens))


CRITIC_OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-6)


def test_promises(truth: Truth, critic_truth: CriticTruth, tmp_path: Path) -> None:
    save_family(tmp_path / "other", "llama", hidden_size=64)
    exported = spawn(_every_promise, 2, truth, critic_truth, tmp_path)[0]
    trained = tmp_path / "trained"
    model = HFActor(truth.folder, device="cpu", dtype="float32")
    model._model.load_state_dict(exported["weights"], strict=False)
    model._model.save_pretrained(trained)
    for file in truth.folder.glob("tokenizer*"):
        (trained / file.name).write_bytes(file.read_bytes())
    again = HFActor(trained, device="cpu", dtype="float32").score(truth.batch.tokens)
    gap = largest_gap(again.log_probs, exported["log_probs"])
    print(f"exported weights, log-probs in Transformers: {gap}")  # noqa: T201
    assert gap <= 1e-5
    assert largest_gap(again.log_probs, truth.scores.log_probs) > 1e-3  # it was trained in between


def _every_promise(rank: int, size: int, truth: Truth, critic: CriticTruth, folder: Path) -> dict[str, Any]:
    from logparity.actors.megatron import ParallelSizes, initialize_groups, release_groups

    warnings.simplefilter("ignore")
    groups = initialize_groups(ParallelSizes(tensor=2, sequence_parallel=True))
    for dtype in ("bfloat16", "float16"):
        _precision(truth, critic, groups, dtype)
    _logits_are_gone(truth, groups)
    _bad_gradients(truth, groups)
    _critic(truth, critic, groups)
    _sft_and_extra_inputs(truth, groups)
    _micro_batches_do_not_matter(truth, groups)
    _bad_input(truth, groups)
    _masters_are_exact(truth, groups)
    exported = _export(truth, groups)
    half = _save(truth, groups, folder / "tp2 fp16", dtype="float16")
    full = _save(truth, groups, folder / "tp2", dtype="float32")
    release_groups()
    groups = initialize_groups(ParallelSizes())
    _empty_ranks(truth, groups)
    _load_elsewhere(truth, groups, folder / "tp2 fp16", half, dtype="float16")
    _masters_are_exact(truth, groups, distributed_optimizer=True)
    _save(truth, groups, folder / "dp2", dtype="bfloat16", distributed_optimizer=True)
    shared = _save(truth, groups, folder / "dp2 fp32", dtype="float32", distributed_optimizer=True)
    release_groups()
    groups = initialize_groups(ParallelSizes(pipeline=2, virtual_pipeline=2))
    _load_elsewhere(truth, groups, folder / "tp2", full, dtype="float32")
    _load_elsewhere(truth, groups, folder / "dp2 fp32", shared, dtype="float32", distributed_optimizer=True)
    _save(truth, groups, folder / "pp2", dtype="float32")
    release_groups()
    for layout in ("contiguous", "zigzag"):
        groups = initialize_groups(ParallelSizes(context=2, context_layout=layout))
        _empty_ranks(truth, groups)
        _sequence_losses(truth, groups)
        release_groups()
    return exported


def _make(truth: Truth, groups: Any, objective: Any = OBJECTIVE, optimizer: Any = OPTIMIZER, **settings: Any) -> Any:
    from logparity.actors.megatron import MegatronActor, MegatronConfig

    return MegatronActor(truth.folder, groups, objective, optimizer, config=MegatronConfig(**settings))


@contextmanager
def _seen_outputs() -> Iterator[list[tuple[bool, torch.dtype]]]:
    """Watches the real `Float16Module`: what each forward was asked for, and the dtype it gave."""
    from megatron.core.transformer.module import Float16Module

    seen: list[tuple[bool, torch.dtype]] = []
    forward = Float16Module.forward

    def watched(module: Any, *args: Any, fp32_output: bool = True, **kwargs: Any) -> Any:
        output = forward(module, *args, fp32_output=fp32_output, **kwargs)
        seen.append((fp32_output, output.dtype))
        return output

    Float16Module.forward = watched
    try:
        yield seen
    finally:
        Float16Module.forward = forward


def _precision(truth: Truth, critic: CriticTruth, groups: Any, dtype: str) -> None:
    from logparity.actors.megatron import MegatronConfig, MegatronCritic, compute_log_prob, forward_only

    half = getattr(torch, dtype)
    actor = _make(truth, groups, dtype=dtype)
    with _seen_outputs() as seen:
        actor.score(truth.batch.tokens)
        assert set(seen) == {(False, half)}, seen
        seen.clear()
        assert actor.train_step(truth.batch)["actor/skipped_steps"] == 0
        assert set(seen) == {(False, half)}, seen
        seen.clear()
        batches = actor._engine.micro_batches(truth.batch.tokens)
        found = compute_log_prob(batches, "teacher_", actor._engine.model, entropy=True)
        assert sorted(found) == ["teacher_entropy", "teacher_log_probs"]
        assert set(seen) == {(False, half)}, seen
        seen.clear()
        wide = forward_only(lambda output, _: output, actor._engine.model, batches)  # a caller that says nothing
        assert set(seen) == {(True, torch.float32)}, seen
        narrow = forward_only(lambda output, _: output, actor._engine.model, batches, fp32_output=False)
        assert all(torch.equal(a, b.float()) for a, b in zip(wide, narrow, strict=True))
        seen.clear()
        values = MegatronCritic(truth.folder, groups, ValueObjective(), config=MegatronConfig(dtype=dtype))
        values.values(critic.batch.tokens)
        values.train_step(critic.batch)
        assert set(seen) == {(True, torch.float32)}, seen


def _logits_are_gone(truth: Truth, groups: Any) -> None:
    """No two micro-batches' logits are alive at once, in scoring and in training."""
    from logparity.actors.megatron import MicroBatchSize, forward_only, training

    actor = _make(truth, groups, dtype="bfloat16", micro_batch=MicroBatchSize(sequences=1))
    alive: list[weakref.ref[Any]] = []

    def watch(output: torch.Tensor) -> None:
        assert all(ref() is None for ref in alive), "an earlier micro-batch's logits are still held"
        alive.append(weakref.ref(output.untyped_storage()))

    def post_process(output: torch.Tensor, batch: Any) -> int:
        watch(output)
        return batch.targets.numel()

    counts = forward_only(post_process, actor._engine.model, actor._engine.micro_batches(truth.batch.tokens))
    assert len(alive) == len(truth.batch.tokens)
    assert sum(counts) == sum(len(r) for r in truth.batch.tokens.response_ids)
    alive.clear()
    score = training.response_scores

    def watched(output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        watch(output)
        return score(output, *args, **kwargs)

    training.response_scores = watched
    try:
        actor.train_step(truth.batch)
    finally:
        training.response_scores = score
    assert len(alive) > 2


@dataclass(frozen=True)
class _Exploding:
    """The objective, times a factor on one rank of the world only."""

    factor: float
    rank: int

    precision = OBJECTIVE.precision
    entropy = OBJECTIVE.entropy
    temperature = None

    def __call__(self, tokens: TokenTensors, denominators: Denominators) -> tuple[torch.Tensor, Metrics]:
        loss, metrics = OBJECTIVE(tokens, denominators)
        return (loss * self.factor if torch.distributed.get_rank() == self.rank else loss), metrics


def _changed(actor: Any, before: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, weight in actor.export_weights() if not torch.equal(weight, before[name])]


def _bad_gradients(truth: Truth, groups: Any) -> None:
    """A gradient that is not finite on one rank leaves the weights of all ranks alone, and is named on all."""
    for dtype in ("float32", "bfloat16", "float16"):
        actor = _make(truth, groups, _Exploding(float("nan"), rank=1), dtype=dtype)
        before = {name: w.clone() for name, w in actor.export_weights()}
        with pytest.warns(RuntimeWarning, match=r"first non-finite gradient in model\.\S+weight") as caught:
            metrics = actor.train_step(truth.batch)
        assert metrics["actor/skipped_steps"] == 1
        assert actor.weight_version == 0
        assert _changed(actor, before) == []
        messages: list[Any] = [None, None]
        torch.distributed.all_gather_object(messages, str(caught[0].message))
        assert messages[0] == messages[1]
        actor._objective = OBJECTIVE
        assert actor.train_step(truth.batch)["actor/skipped_steps"] == 0
        assert _changed(actor, before)
        assert actor.weight_version == 1
    overflow = _make(truth, groups, dtype="float16", initial_loss_scale=2.0**40)
    with pytest.warns(RuntimeWarning, match=r"skipped"):
        metrics = overflow.train_step(truth.batch)
    assert metrics["actor/loss_scale"] == 2.0**39
    for _ in range(30):
        metrics = overflow.train_step(truth.batch)
    assert metrics["actor/skipped_steps"] == 0
    assert metrics["actor/grad_norm"] == pytest.approx(truth.metrics["actor/grad_norm"], rel=0.05)


def _critic(truth: Truth, critic: CriticTruth, groups: Any) -> None:
    from logparity.actors.base import Critic
    from logparity.actors.megatron import MegatronConfig, MegatronCritic

    ours = MegatronCritic(
        truth.folder, groups, ValueObjective(), CRITIC_OPTIMIZER, config=MegatronConfig(dtype="float32")
    )
    assert isinstance(ours, Critic)
    assert not np.concatenate(ours.values(critic.batch.tokens)).any()
    for _ in range(2):
        assert ours.train_step(critic.batch)["critic/skipped_steps"] == 0
    assert np.abs(np.concatenate(critic.values)).max() > 0.05
    gap = largest_gap(ours.values(critic.batch.tokens), critic.values)
    assert gap <= 1e-4, gap  # two steps of rate 1e-2


def _sft_and_extra_inputs(truth: Truth, groups: Any) -> None:
    from logparity.actors.base import Actor
    from logparity.actors.megatron import MicroBatchSize

    actor = _make(truth, groups, SFTObjective(), dtype="float32", micro_batch=MicroBatchSize(sequences=1))
    assert isinstance(actor, Actor)
    ones = truth.batch.tokens.at_temperature(1.0)
    active = [v[m] for v, m in zip(actor.score(ones).log_probs, ones.response_mask, strict=True)]
    assert actor.train_step(truth.batch)["loss"] == pytest.approx(-np.concatenate(active).mean(), rel=1e-5)
    chunk, seen = actor._engine.model.chunks[0], []
    hook = chunk.register_forward_pre_hook(lambda _m, _args, kwargs: seen.append(kwargs["loss_mask"]), with_kwargs=True)
    marks = [{"loss_mask": torch.full((1,), float(i))} for i in range(len(ones))]
    actor.score(ones, extra=marks)
    hook.remove()
    assert sorted(float(mask) for mask in seen) == list(range(len(ones)))


def _micro_batches_do_not_matter(truth: Truth, groups: Any) -> None:
    from logparity.actors.megatron import MicroBatchSize

    sizes = (MicroBatchSize(sequences=1), MicroBatchSize(tokens=20), MicroBatchSize(tokens=4096))
    for packed in (True, False):
        for size in sizes:
            actor = _make(truth, groups, dtype="float32", micro_batch=size, packed=packed)
            scored = actor.score(truth.batch.tokens)
            assert scored.keys == truth.batch.tokens.keys
            assert largest_gap(scored.log_probs, truth.scores.log_probs) <= 1e-5
            norm = actor.train_step(truth.batch)["actor/grad_norm"]
            assert norm == pytest.approx(truth.metrics["actor/grad_norm"], rel=1e-5)


def _bad_input(truth: Truth, groups: Any) -> None:
    from logparity.actors.megatron import MegatronActor, MicroBatchSize, ParallelSizes
    from logparity.actors.megatron.family import read_family
    from logparity.errors import InputError

    actor = _make(truth, groups, None, dtype="float32", micro_batch=MicroBatchSize(tokens=8))
    with pytest.raises(InputError, match=r"sequence 's1': 10 tokens.*micro_batch_tokens is 8. Raise"):
        actor.score(truth.batch.tokens)
    with pytest.raises(InputError, match="no objective"):
        actor.train_step(truth.batch)
    with pytest.raises(InputError, match="reference=True"):
        actor.score_reference(truth.batch.tokens)
    with pytest.raises(InputError, match=r"multiple of tensor \* pipeline \* context = 3 \* 1 \* 1 = 3, got 2"):
        ParallelSizes(tensor=3).data(2)
    family = read_family(truth.folder)
    for sizes, message in (
        (ParallelSizes(tensor=4), "divisor of the model's 2 key-value heads, got 4"),
        (ParallelSizes(pipeline=3), "divisor of the model's 4 layers, got 3"),
        (ParallelSizes(expert=2), "expected 1 for a dense model, got 2"),
    ):
        with pytest.raises(InputError, match=message):
            family.check(sizes)
    reference = MegatronActor(truth.folder, groups, config=actor._engine.config, reference=True)
    assert reference._reference is not None


def _export(truth: Truth, groups: Any) -> dict[str, Any]:
    """Trained and exported in float32."""
    optimizer = OptimizerConfig(lr=1e-3, warmup_steps=2)
    actor = _make(truth, groups, OBJECTIVE, optimizer, dtype="float32")
    rates = [actor.train_step(truth.batch)["actor/lr"] for _ in range(3)]
    assert rates == pytest.approx([optimizer.lr_at(step) for step in range(3)])
    weights = {name: w.clone() for name, w in actor.export_weights()}
    return {"weights": weights, "log_probs": actor.score(truth.batch.tokens).log_probs}


_TRAINED = OptimizerConfig(lr=1e-3, warmup_steps=3)


def _save(truth: Truth, groups: Any, folder: Path, **settings: Any) -> list[Any]:
    """Save after one step; a fresh actor that loads it continues with the same bits as the one that went on."""
    if torch.distributed.get_rank() == 0:
        folder.mkdir()
    torch.distributed.barrier()
    actor = _make(truth, groups, OBJECTIVE, _TRAINED, **settings)
    actor.train_step(truth.batch)
    actor.save_checkpoint(folder)
    generator = torch.random.get_rng_state()
    expected = [actor.train_step(truth.batch) for _ in range(2)]
    torch.manual_seed(99)
    resumed = _make(truth, groups, OBJECTIVE, _TRAINED, **settings)
    resumed.load_checkpoint(folder)
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert resumed.weight_version == 1
    assert [resumed.train_step(truth.batch) for _ in range(2)] == expected
    for (_, a), (_, b) in zip(actor.export_weights(), resumed.export_weights(), strict=True):
        assert torch.equal(a, b)
    return expected


def _masters_are_exact(truth: Truth, groups: Any, **settings: Any) -> None:
    """Float32 masters hold the folder's values, not their bfloat16 cast, also where ranks share them out."""
    from logparity.actors.megatron.naming import placed_parameters
    from logparity.actors.megatron.weights import WeightFiles

    actor = _make(truth, groups, dtype="bfloat16", **settings)
    files, held = WeightFiles(truth.folder), 0
    for placed in placed_parameters(actor._engine.model):
        master = getattr(placed.parameter, "main_param", None)
        if master is None:
            continue
        values = placed.rule.shard(files.read, groups.tp.rank(), groups.tp.size())
        if getattr(placed.parameter, "main_param_sharded", False):
            part = actor._engine.optimizer._range(placed.parameter)
            values = values.reshape(-1)[part.start : part.end]
        assert torch.equal(master.reshape(values.shape), values)
        held += master.numel()
    count = torch.tensor(held)
    torch.distributed.all_reduce(count)
    assert count >= sum(w.numel() for w in truth.weights.values())


def _load_elsewhere(truth: Truth, groups: Any, folder: Path, expected: list[Any], **settings: Any) -> None:
    """Saved under one layout, loaded under another: the same losses up to rounding."""
    from logparity.actors.megatron import MegatronActor, MegatronConfig
    from logparity.errors import ModelError, RunFolderError

    actor = _make(truth, groups, OBJECTIVE, _TRAINED, **settings)
    actor.load_checkpoint(folder)
    assert actor.weight_version == 1
    half = settings["dtype"] != "float32"
    for step in expected:
        found = actor.train_step(truth.batch)
        assert found.get("actor/loss_scale") == step.get("actor/loss_scale")
        assert found["loss"] == pytest.approx(step["loss"], rel=5e-3 if half else 1e-4, abs=1e-3 if half else 1e-5)
    with pytest.raises(RunFolderError, match="not empty"):
        actor.save_checkpoint(folder)
    with pytest.raises(ModelError, match="cannot be read"):
        actor.load_checkpoint(folder / "nowhere")
    other = MegatronActor(folder.parent / "other", groups, OBJECTIVE, config=MegatronConfig(**settings))
    before = {name: w.clone() for name, w in other.export_weights()}
    with pytest.raises(
        ModelError, match=r"belongs to another model: \S+: expected shape .*64.*, the checkpoint holds shape"
    ):
        other.load_checkpoint(folder)
    assert _changed(other, before) == []


def _sequence_losses(truth: Truth, groups: Any) -> None:
    """A loss with one ratio per sequence, whose tokens lie on two ranks, and a rejection of whole sequences."""
    geometric = RejectionConfig(RatioLevel.GEOMETRIC, 0.9, 1.1)
    objective = PolicyObjective(
        surrogate=GSPOConfig(),
        correction=CorrectionConfig(rejection=geometric),
        reduction=ReductionConfig("sequence_mean_token_mean"),
    )
    alone = HFActor(truth.folder, objective, OPTIMIZER, device="cpu", dtype="float32")
    expected = alone.train_step(truth.batch)
    found = _make(truth, groups, objective, dtype="float32").train_step(truth.batch)
    for name in expected:
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def _empty_ranks(truth: Truth, groups: Any) -> None:
    """One short response at the end of one sequence: some rank has no response token, or no sequence, and no harm."""
    rng = np.random.default_rng(3)
    tokens = TokenBatch(
        keys=("only",),
        prompt_ids=(rng.integers(3, 259, 30),),
        response_ids=(rng.integers(3, 259, 2),),
        response_mask=(np.ones(2, dtype=bool),),
        temperature=np.ones(1, dtype=np.float32),
    )
    alone = HFActor(truth.folder, OBJECTIVE, OPTIMIZER, device="cpu", dtype="float32")
    scores = alone.score(tokens, entropy=True)
    batch = training_batch(tokens, scores)
    expected = alone.train_step(copy.deepcopy(batch))
    for dtype, bound in (("float32", 1e-5), ("bfloat16", 0.1), ("float16", 0.02)):
        actor = _make(truth, groups, dtype=dtype)
        assert largest_gap(actor.score(tokens).log_probs, scores.log_probs) <= bound
        found = actor.train_step(replace(batch))
        assert found["actor/skipped_steps"] == 0
        assert found["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=bound)


def test_a_rank_that_dies_ends_the_others_with_its_traceback(truth: Truth) -> None:
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)error-\d:.*RuntimeError: rank 1 dies on purpose"):
        spawn(_die, 2, truth)
    assert time.monotonic() - start < 60  # the group's own timeout


def _die(rank: int, size: int, truth: Truth) -> None:
    from logparity.actors.megatron import ParallelSizes, initialize_groups, training

    def raising(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("rank 1 dies on purpose")

    if rank == 1:
        training.response_scores = raising
    _make(truth, initialize_groups(ParallelSizes(tensor=2)), dtype="float32").train_step(truth.batch)
