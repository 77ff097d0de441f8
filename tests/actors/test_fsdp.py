"""One process on Transformers is the truth; two ranks under FSDP2 must compute the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from logparity.actors import Actor, HFActor
from logparity.actors.fsdp import FSDPActor, open_mesh
from logparity.actors.fsdp.weights import whole_tensor
from logparity.errors import InputError, LogparityError
from logparity.losses import PolicyObjective
from logparity.losses.base import Denominators, Metrics, TokenTensors
from logparity.records import TrainingBatch
from tests.support.megatron_truth import OBJECTIVE, OPTIMIZER, Truth, compute_truth, largest_gap, mean_gap
from tests.support.spawn import spawn
from tests.support.tiny_families import save_family
from tests.support.tiny_models import save_tiny_gpt2

pytestmark = pytest.mark.distributed
BUDGET = 32


@dataclass(frozen=True)
class Found:
    """What one rank was told."""

    is_actor: bool
    scores: Any
    half_scores: Any
    reference: Any
    few: Any
    metrics: dict[str, float]
    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    shard_elements: int
    one_trained: dict[str, float]
    resumed: list[dict[str, float]]
    uninterrupted: list[dict[str, float]]
    same_bits: bool
    refusals: dict[str, str]
    skipped: dict[str, float]
    skip_warning: str
    unchanged: bool
    recomputed: dict[str, float]


def run(rank: int, size: int, truth: Truth, other: Path, root: Path) -> Found:
    """Everything that two ranks are asked, in one go: starting them is what takes long."""
    batch = truth.batch
    actor = FSDPActor(truth.folder, OBJECTIVE, OPTIMIZER, dtype="float32", micro_batch_tokens=BUDGET, reference=True)
    scores = actor.score(batch.tokens, entropy=True)
    few = actor.score(batch.tokens.select([1]))
    gradients = spy(actor)
    metrics = dict(actor.train_step(batch))
    weights = {name: w.clone() for name, w in actor.export_weights()}
    reference = actor.score_reference(batch.tokens)
    one_trained = dict(actor.train_step(batch.select([1])))
    folder = root / "checkpoint"
    if rank == 0:
        folder.mkdir()
    torch.distributed.barrier()
    actor.save_checkpoint(folder)
    uninterrupted = [dict(actor.train_step(batch)) for _ in range(2)]
    again = FSDPActor(truth.folder, OBJECTIVE, OPTIMIZER, dtype="float32", micro_batch_tokens=BUDGET)
    again.load_checkpoint(folder)
    resumed = [dict(again.train_step(batch)) for _ in range(2)]
    same_bits = all(
        torch.equal(a[1], b[1]) for a, b in zip(actor.export_weights(), again.export_weights(), strict=True)
    )
    refusals = {
        "full folder": refused(lambda: actor.save_checkpoint(folder)),
        "other model": refused(lambda: FSDPActor(other, dtype="float32").load_checkpoint(folder)),
        "failing loss": refused(lambda: break_a_step(again, batch)),
    }
    after_failure = dict(again.train_step(batch))
    assert after_failure == dict(actor.train_step(batch))
    skipped, warning, unchanged = bad_step(actor, batch)
    half = FSDPActor(truth.folder, dtype="bfloat16", micro_batch_tokens=BUDGET)
    thrifty = FSDPActor(
        truth.folder, OBJECTIVE, OPTIMIZER, dtype="float32", micro_batch_tokens=BUDGET,
        gradient_checkpointing=True, recompute_loss=True,
    )  # fmt: skip
    return Found(
        is_actor=isinstance(actor, Actor),
        scores=scores,
        half_scores=half.score(batch.tokens),
        reference=reference,
        few=few,
        metrics=metrics,
        gradients=gradients,
        weights=weights,
        shard_elements=sum(part.numel() for part in actor._weights.parts.values()),
        one_trained=one_trained,
        resumed=resumed,
        uninterrupted=uninterrupted,
        same_bits=same_bits,
        refusals=refusals,
        skipped=skipped,
        skip_warning=warning,
        unchanged=unchanged,
        recomputed=dict(thrifty.train_step(batch)),
    )


def spy(actor: FSDPActor) -> dict[str, torch.Tensor]:
    """Whole gradients of the next step, as the optimizer sees them."""
    seen: dict[str, torch.Tensor] = {}
    step = actor._optimizer.step

    def look() -> Any:
        if not seen:
            for name, part in actor._weights.parts.items():
                assert part.grad is not None
                seen[name] = whole_tensor(actor._weights.as_whole(name, part.grad)).clone()
        return step()

    actor._optimizer.step = look  # type: ignore[method-assign]
    return seen


def refused(call: Any) -> str:
    try:
        call()
    except LogparityError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@dataclass(frozen=True)
class Fragile:
    """An objective that breaks on one sequence, which only one rank computes."""

    whole: PolicyObjective

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def __call__(self, tokens: TokenTensors, denominators: Denominators) -> tuple[torch.Tensor, Metrics]:
        if "s1" in (tokens.keys or ()):
            raise InputError("advantages of 's1': this objective refuses them.")
        return self.whole(tokens, denominators)


def break_a_step(actor: FSDPActor, batch: TrainingBatch) -> None:
    actor._objective = Fragile(OBJECTIVE)
    try:
        actor.train_step(batch)
    finally:
        actor._objective = OBJECTIVE


def bad_step(actor: FSDPActor, batch: TrainingBatch) -> tuple[dict[str, float], str, bool]:
    """A step whose gradient is infinite on one rank's part of one weight."""
    before = [w.clone() for _, w in actor.export_weights()]
    take = actor._weights.take_gradients
    name = "model.layers.1.mlp.up_proj.weight"

    def poison() -> None:
        take()
        if torch.distributed.get_rank() == 1:
            grad = actor._weights.parts[name].grad
            assert grad is not None
            grad[0, 0] = float("inf")

    actor._weights.take_gradients = poison  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning) as caught:
        metrics = dict(actor.train_step(batch))
    actor._weights.take_gradients = take  # type: ignore[method-assign]
    unchanged = all(torch.equal(a, b[1]) for a, b in zip(before, actor.export_weights(), strict=True))
    return metrics, str(caught[0].message), unchanged


@pytest.fixture(scope="module", params=["tied", "untied"])
def truth(request: pytest.FixtureRequest, tiny_folder: Path, untied_folder: Path) -> Truth:
    return compute_truth(tiny_folder if request.param == "tied" else untied_folder)


@pytest.fixture(scope="module")
def found(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    other = save_tiny_gpt2(tmp_path_factory.mktemp("other"))
    return spawn(run, 2, truth, other, tmp_path_factory.mktemp("fsdp"))


def test_every_rank_is_told_the_same(found: list[Found]) -> None:
    first, second = found
    assert first.is_actor
    assert first.metrics == second.metrics
    assert largest_gap(first.scores.log_probs, second.scores.log_probs) == 0
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_scores_are_those_of_one_process(found: list[Found], truth: Truth) -> None:
    for rank in found:
        assert rank.scores.keys == truth.batch.tokens.keys
        assert largest_gap(rank.scores.log_probs, truth.scores.log_probs) < 1e-5
        assert largest_gap(rank.scores.entropy, truth.scores.entropy) < 1e-5
        assert largest_gap(rank.reference.log_probs, truth.scores.log_probs) < 1e-5  # also after the policy has moved


def test_bfloat16_scores_are_as_near_to_float32_as_those_of_one_process(found: list[Found], truth: Truth) -> None:
    budget = mean_gap(truth.half_scores.log_probs, truth.scores.log_probs)
    assert mean_gap(found[0].half_scores.log_probs, truth.scores.log_probs) < 1.2 * budget


def test_fewer_sequences_than_ranks(found: list[Found], truth: Truth) -> None:
    assert largest_gap(found[1].few.log_probs, truth.scores.log_probs[1:2]) < 1e-5
    one = HFActor(truth.folder, OBJECTIVE, OPTIMIZER, dtype="float32", device="cpu")
    one.train_step(truth.batch)
    expected = one.train_step(truth.batch.select([1]))
    for rank in found:
        assert rank.one_trained.keys() == expected.keys()
        for name, value in expected.items():
            assert rank.one_trained[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_one_step_is_that_of_one_process(found: list[Found], truth: Truth) -> None:
    (rank, _) = found
    assert rank.metrics.keys() == truth.metrics.keys()
    for name, value in truth.metrics.items():
        assert rank.metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    assert rank.gradients.keys() == truth.gradients.keys()
    for name, gradient in truth.gradients.items():
        assert float((rank.gradients[name] - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()), name
    for name, weight in truth.weights.items():
        torch.testing.assert_close(rank.weights[name], weight, rtol=0, atol=1e-6)


def test_recomputing_changes_nothing(found: list[Found], truth: Truth) -> None:
    for name, value in truth.metrics.items():
        assert found[0].recomputed[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_each_rank_holds_its_part_of_masters_and_moments(found: list[Found], truth: Truth) -> None:
    whole = sum(weight.numel() for weight in truth.weights.values())
    assert sum(rank.shard_elements for rank in found) == whole
    assert all(rank.shard_elements < 0.52 * whole for rank in found)


def test_resume_continues_with_the_same_bits(found: list[Found]) -> None:
    for rank in found:
        assert rank.resumed == rank.uninterrupted
        assert rank.same_bits


def test_exported_weights_load_into_transformers(found: list[Found], truth: Truth) -> None:
    model = AutoModelForCausalLM.from_pretrained(truth.folder, dtype=torch.float32)
    keys = model.load_state_dict(found[0].weights, strict=False)
    assert not keys.unexpected_keys
    assert set(keys.missing_keys) <= {"lm_head.weight"}


def test_bad_input_is_refused_on_every_rank(found: list[Found]) -> None:
    for rank in found:
        assert "is not empty: choose a fresh one" in rank.refusals["full folder"]
        assert "belongs to another model" in rank.refusals["other model"]
    failures = sorted(rank.refusals["failing loss"] for rank in found)
    assert failures[0].startswith("InputError: advantages of 's1'")
    assert failures[1].startswith("LogparityError: data-parallel rank ")  # where the sequence is not, it says where


def test_a_bad_gradient_on_one_rank_stops_every_rank(found: list[Found]) -> None:
    for rank in found:
        assert rank.skipped["actor/skipped_steps"] == 1
        assert "model.layers.1.mlp.up_proj.weight" in rank.skip_warning
        assert rank.unchanged


@dataclass(frozen=True)
class Shared:
    """What a rank was told that shares matrices with the other."""

    scores: Any
    half_scores: Any
    metrics: dict[str, float]
    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    resumed: list[dict[str, float]]
    uninterrupted: list[dict[str, float]]
    loaded_as_shards: bool
    refusals: list[str]


def run_tensor_parallel(rank: int, size: int, truth: Truth, refused_folders: list[Path], root: Path) -> Shared:
    mesh = open_mesh(size, "cpu")

    def build(dtype: str = "float32", **settings: Any) -> FSDPActor:
        return FSDPActor(truth.folder, OBJECTIVE, OPTIMIZER, dtype=dtype, **settings)

    thrift = {"micro_batch_tokens": BUDGET, "recompute_loss": True, "gradient_checkpointing": True}
    actor = build(mesh=mesh, **thrift)
    scores = actor.score(truth.batch.tokens, entropy=True)
    gradients = spy(actor)
    metrics = dict(actor.train_step(truth.batch))
    weights = {name: w.clone() for name, w in actor.export_weights()}
    if rank == 0:
        root.mkdir()
    torch.distributed.barrier()
    actor.save_checkpoint(root)
    uninterrupted = [dict(actor.train_step(truth.batch)) for _ in range(2)]
    again = build(mesh=mesh, **thrift)
    again.load_checkpoint(root)
    resumed = [dict(again.train_step(truth.batch)) for _ in range(2)]
    shards = build()
    shards.load_checkpoint(root)
    return Shared(
        scores=scores,
        half_scores=build("bfloat16", mesh=mesh).score(truth.batch.tokens),
        metrics=metrics,
        gradients=gradients,
        weights=weights,
        resumed=resumed,
        uninterrupted=uninterrupted,
        loaded_as_shards=all(torch.equal(weights[name], w) for name, w in shards.export_weights()),
        refusals=[refused(lambda folder=folder: FSDPActor(folder, mesh=mesh)) for folder in refused_folders]
        + [refused(lambda: open_mesh(3, "cpu"))],
    )


@pytest.fixture(scope="module", params=["tied", "qwen3"])
def shared_truth(request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    if request.param == "tied":
        return compute_truth(tiny_folder)  # 259 columns, which two ranks do not share evenly
    return compute_truth(save_family(tmp_path_factory.mktemp("qwen3") / "model", "qwen3"))


@pytest.fixture(scope="module")
def shared(shared_truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> list[Shared]:
    root = tmp_path_factory.mktemp("tensor")
    others = [save_tiny_gpt2(root / "gpt2"), save_family(root / "moe", "qwen3_moe")]
    return spawn(run_tensor_parallel, 2, shared_truth, others, root / "checkpoint")


def test_tensor_parallel_ranks_compute_what_one_process_does(shared: list[Shared], shared_truth: Truth) -> None:
    for rank in shared:
        assert largest_gap(rank.scores.log_probs, shared_truth.scores.log_probs) < 1e-5
        assert largest_gap(rank.scores.entropy, shared_truth.scores.entropy) < 1e-5
        for name, value in shared_truth.metrics.items():
            assert rank.metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        for name, gradient in shared_truth.gradients.items():
            assert float((rank.gradients[name] - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()), name
        for name, weight in shared_truth.weights.items():
            torch.testing.assert_close(rank.weights[name], weight, rtol=0, atol=1e-6)
    budget = mean_gap(shared_truth.half_scores.log_probs, shared_truth.scores.log_probs)
    assert mean_gap(shared[0].half_scores.log_probs, shared_truth.scores.log_probs) < 1.6 * budget
    assert largest_gap(shared[0].scores.log_probs, shared[1].scores.log_probs) == 0


def test_tensor_parallel_ranks_resume_and_load_as_shards(shared: list[Shared]) -> None:
    for rank in shared:
        assert rank.loaded_as_shards
        assert rank.resumed == rank.uninterrupted


def test_models_that_do_not_divide_are_refused(shared: list[Shared]) -> None:
    for rank in shared:
        gpt2, experts, ranks = rank.refusals
        assert "gpt2, since it has no tensor-parallel plan" in gpt2
        assert "qwen3_moe, since its plan has moe_tp_experts" in experts
        assert "divides the 2 ranks, got 3" in ranks
