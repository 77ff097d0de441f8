"""Gradients by hidden states, weight, and bias; and what surrounds them in a model."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from logparity.ops import linear_token_log_probs
from tests.support.heads import exact_gradients, random_head


def relative(ours: torch.Tensor, truth: torch.Tensor) -> float:
    return float((ours.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 2.6e-3), (torch.float16, 3.5e-4)])
@pytest.mark.parametrize("chunk_size", ["auto", 50])
def test_gradients_are_near_float64(dtype: torch.dtype, limit: float, chunk_size: int | str) -> None:
    case = random_head(120, 32, 20000, dtype)
    truth = exact_gradients(case)
    scores = linear_token_log_probs(
        case.hidden, case.weight, case.targets, bias=case.bias, logits_dtype=torch.float32, chunk_size=chunk_size
    )
    ours = torch.autograd.grad(scores.log_probs, case.leaves, case.upstream[0])
    for mine, exact, leaf in zip(ours, truth, case.leaves, strict=True):
        assert mine.dtype == leaf.dtype
        assert relative(mine, exact) <= limit


def test_hidden_gradient_is_nearer_to_the_truth_than_a_plain_head() -> None:
    case = random_head(64, 32, 40000, torch.bfloat16)
    truth = exact_gradients(case)[0]
    ours = linear_token_log_probs(case.hidden, case.weight, case.targets, bias=case.bias).log_probs
    logits = torch.nn.functional.linear(case.hidden, case.weight, case.bias)
    plain = torch.log_softmax(logits.float(), -1).gather(1, case.targets[:, None]).squeeze(1)
    errors = [relative(torch.autograd.grad(each, case.hidden, case.upstream[0])[0], truth) for each in (ours, plain)]
    assert errors[0] <= 0.85 * errors[1]


def test_gradcheck_in_double() -> None:
    case = random_head(3, 4, 1030, torch.float64)
    case.hidden.data *= 0.3

    def scores(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full = torch.cat([weight, case.weight.detach()[20:]])
        offsets = torch.cat([bias, case.bias.detach()[20:]])
        out = linear_token_log_probs(
            hidden, full, case.targets % 20, bias=offsets, entropy="grad", temperature=0.8, logit_softcap=6.0
        )
        return out.log_probs, out.entropy

    leaves = [case.hidden, case.weight.detach()[:20].requires_grad_(), case.bias.detach()[:20].requires_grad_()]
    assert torch.autograd.gradcheck(scores, leaves, fast_mode=True)


def test_padding_rows_of_the_weight_get_exactly_no_gradient() -> None:
    case = random_head(5, 8, 5000, torch.bfloat16)
    scores = linear_token_log_probs(
        case.hidden, case.weight, case.targets % 4000, bias=case.bias, valid_vocab_size=4100
    )
    _, by_weight, by_bias = torch.autograd.grad(scores.log_probs.sum(), case.leaves)
    assert (by_weight[4100:] == 0).all()
    assert (by_bias[4100:] == 0).all()
    assert by_weight[:4100].any()


@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_what_requires_grad_gets_one(needed: tuple[bool, bool, bool]) -> None:
    case = random_head(30, 8, 5000)
    scores = linear_token_log_probs(case.hidden, case.weight, case.targets, bias=case.bias, chunk_size=7)
    whole = torch.autograd.grad(scores.log_probs.sum(), case.leaves)
    leaves = [leaf.detach().requires_grad_(want) for leaf, want in zip(case.leaves, needed, strict=True)]
    scores = linear_token_log_probs(leaves[0], leaves[1], case.targets, bias=leaves[2], chunk_size=7)
    scores.log_probs.sum().backward()
    for leaf, want, expected in zip(leaves, needed, whole, strict=True):
        assert (leaf.grad is not None) == want
        assert not want or torch.allclose(leaf.grad, expected, atol=1e-6)


def test_tied_embeddings_sum_both_gradients() -> None:
    case = random_head(10, 8, 5000)
    ids = torch.arange(10)

    def loss(scorer: object) -> torch.Tensor:
        table = torch.nn.Parameter(case.weight.detach().clone())
        hidden = torch.nn.functional.embedding(ids, table)
        scorer(hidden, table).sum().backward()
        return table.grad

    def plain(hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(hidden @ table.T, -1).gather(1, case.targets[:, None])

    ours = loss(lambda hidden, table: linear_token_log_probs(hidden, table, case.targets).log_probs)
    assert torch.allclose(ours, loss(plain), atol=1e-5)


def test_backward_keeps_numbers_per_token_and_its_inputs_only() -> None:
    case = random_head(50, 8, 20000)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        linear_token_log_probs(case.hidden, case.weight, case.targets, entropy="grad")
    owned = {leaf.untyped_storage().data_ptr() for leaf in case.leaves}
    extra = [each for each in kept if each.untyped_storage().data_ptr() not in owned]
    assert sum(each.nbytes for each in extra) <= 50 * 64


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(reentrant: bool) -> None:
    case = random_head(10, 8, 5000)

    def scores(hidden: torch.Tensor) -> torch.Tensor:
        return linear_token_log_probs(hidden, case.weight, case.targets).log_probs

    plain = torch.autograd.grad(scores(case.hidden).sum(), [case.hidden])[0]
    checkpoint(scores, case.hidden, use_reentrant=reentrant).sum().backward()
    assert torch.equal(case.hidden.grad, plain)


def test_autocast_multiplies_in_its_dtype_and_returns_gradients_in_the_parameters() -> None:
    case = random_head(12, 16, 5000)
    with torch.autocast("cpu", torch.bfloat16):
        scores = linear_token_log_probs(case.hidden, case.weight, case.targets, bias=case.bias, chunk_size=5)
    gradients = torch.autograd.grad(scores.log_probs, case.leaves, case.upstream[0])
    cast = linear_token_log_probs(
        case.hidden.bfloat16(), case.weight.bfloat16(), case.targets, bias=case.bias.detach(), chunk_size=5
    )
    assert torch.equal(scores.log_probs, cast.log_probs)
    assert [each.dtype for each in gradients] == [torch.float32] * 3
    truth = exact_gradients(case)
    assert all(relative(ours, exact) <= 2e-2 for ours, exact in zip(gradients, truth, strict=True))


def test_retain_graph_gives_the_same_twice_and_double_backward_raises() -> None:
    case = random_head(5, 8, 5000)
    scores = linear_token_log_probs(case.hidden, case.weight, case.targets).log_probs
    first = torch.autograd.grad(scores.sum(), case.hidden, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(scores.sum(), case.hidden, retain_graph=True)[0])
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(scores.sum(), case.hidden, create_graph=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_scoring_without_gradients(mode: type) -> None:
    case = random_head(5, 8, 5000)
    with mode():
        scores = linear_token_log_probs(case.hidden, case.weight, case.targets, entropy="grad")
    assert not scores.log_probs.requires_grad
    assert torch.equal(scores.log_probs, linear_token_log_probs(case.hidden, case.weight, case.targets).log_probs)


def test_entropy_as_a_value_has_no_gradient() -> None:
    case = random_head(5, 8, 5000)
    scores = linear_token_log_probs(case.hidden, case.weight, case.targets, entropy="value")
    assert scores.log_probs.requires_grad
    assert not scores.entropy.requires_grad


def test_devices_that_add_products_unrounded_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that CUDA gets, with its mixed-precision products played by float32 ones."""
    case = random_head(70, 32, 9001, torch.bfloat16)

    def gradients(logits_dtype: torch.dtype) -> list[torch.Tensor]:
        scores = linear_token_log_probs(
            case.hidden, case.weight, case.targets, bias=case.bias, chunk_size=30, logits_dtype=logits_dtype
        )
        return [scores.log_probs, *torch.autograd.grad(scores.log_probs, case.leaves, case.upstream[0])]

    here = gradients(torch.float32)
    mm, addmm, mixed = torch.mm, torch.addmm, []

    def play_mm(
        left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor, out_dtype: object = None
    ) -> torch.Tensor:
        if out_dtype is None:
            return mm(left, right, out=out)
        mixed.append(out_dtype)
        return mm(left.to(out_dtype), right.to(out_dtype), out=out)

    def play_addmm(
        total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor, out_dtype: torch.dtype
    ) -> torch.Tensor:
        mixed.append(out_dtype)
        return addmm(total, left.to(out_dtype), right.to(out_dtype), out=out)

    def unrounded(factor: torch.Tensor, result: torch.Tensor) -> bool:
        return (factor.dtype, result.dtype) == (torch.bfloat16, torch.float32)

    monkeypatch.setattr(torch, "mm", play_mm)
    monkeypatch.setattr(torch, "addmm", play_addmm)
    for module in ("tiles", "linear_gradient"):
        monkeypatch.setattr(f"logparity.ops.{module}.adds_unrounded", unrounded)
    there = gradients(torch.float32)
    assert set(mixed) == {torch.float32}
    assert torch.equal(there[0], here[0])
    truth = exact_gradients(case)
    assert all(relative(ours, exact) <= 2.6e-3 for ours, exact in zip(there[1:], truth, strict=True))
