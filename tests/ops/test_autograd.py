"""Inside all that torch does around an operation: gradient modes, checkpoints, compile, autocast, retain_graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logparity.errors import InputError
from logparity.ops import Support, TokenLogProbs, token_log_probs
from tests.support.logits import hard_rows, random_rows
from tests.support.tolerance import assert_same_bits


def test_gradcheck_of_all_three_scores() -> None:
    logits, targets = random_rows(4, 9, torch.float64, scale=1.0)
    support = Support.from_lists([[int(t), 0, 8] for t in targets])
    temperature = torch.tensor([0.5, 1.0, 1.5, 0.8])

    def scores(x: Tensor, options: dict[str, Any]) -> TokenLogProbs:
        return token_log_probs(x, targets, temperature=temperature, entropy="grad", support=support, **options)

    for options in ({}, {"logit_softcap": 2.0, "logit_scale": 1.3}, {"chunk_size": 1, "valid_vocab_size": 9}):
        leaf = logits.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, o=options: scores(x, o), (leaf,))


def test_entropy_as_a_value_has_no_gradient() -> None:
    logits, targets = random_rows(3, 129, torch.float32)
    scores = token_log_probs(logits.requires_grad_(), targets, entropy="value")
    assert scores.log_probs.requires_grad
    assert not scores.entropy.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradient_free_modes(mode: Any) -> None:
    logits, targets = hard_rows(1003, torch.bfloat16)
    expected = token_log_probs(logits, targets, entropy="value")
    with mode():
        got = token_log_probs(logits.clone().requires_grad_(), targets, entropy="grad")
    for mine, theirs in zip(got[:2], expected[:2], strict=True):
        assert not mine.requires_grad
        assert_same_bits(mine, theirs)


def test_inference_tensors_can_be_scored_outside_inference_mode() -> None:
    with torch.inference_mode():
        logits, targets = random_rows(3, 129, torch.float32)
    assert token_log_probs(logits, targets).log_probs.isfinite().all()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("into_logits", [True, False])
def test_checkpoints(reentrant: bool, into_logits: bool) -> None:
    head, targets = nn.Linear(8, 129), torch.randint(129, (5,))
    hidden = torch.randn(5, 8, requires_grad=True)

    def score(x: Tensor) -> Tensor:
        return token_log_probs(head(x), targets, entropy="grad", grad_into_logits=into_logits).log_probs

    plain = torch.autograd.grad(score(hidden).sum(), (hidden, head.weight))
    for parameter in head.parameters():
        parameter.grad = None
    checkpoint(score, hidden, use_reentrant=reentrant).sum().backward()
    assert_same_bits(hidden.grad, plain[0])
    assert_same_bits(head.weight.grad, plain[1])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # by dynamo itself
def test_the_surrounding_model_can_be_compiled() -> None:
    head, targets = nn.Linear(8, 129), torch.randint(129, (5,))
    hidden = torch.randn(5, 8)

    def loss(x: Tensor) -> Tensor:
        return -token_log_probs(head(x).relu() * 2, targets, temperature=0.8).log_probs.mean() * 3

    compiled = torch.compile(loss, backend="aot_eager")
    torch.testing.assert_close(compiled(hidden), loss(hidden))
    expected = torch.autograd.grad(loss(hidden), head.weight)[0]
    torch.testing.assert_close(torch.autograd.grad(compiled(hidden), head.weight)[0], expected)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_autocast_changes_nothing(impl: str) -> None:
    logits, targets = hard_rows(1003, torch.float32)
    leaf = logits.clone().requires_grad_()
    expected = token_log_probs(leaf, targets, entropy="grad", impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = token_log_probs(leaf, targets, entropy="grad", impl=impl)
        got.log_probs.sum().backward()
    assert_same_bits(got.log_probs, expected.log_probs)
    assert_same_bits(got.entropy, expected.entropy)
    under_autocast, leaf.grad = leaf.grad, None
    expected.log_probs.sum().backward()
    assert_same_bits(under_autocast, leaf.grad)


def test_two_losses_may_share_one_score() -> None:
    leaf = random_rows(3, 129, torch.float32)[0].requires_grad_()
    scores = token_log_probs(leaf, torch.tensor([1, 2, 3]), entropy="grad")
    first = torch.autograd.grad(scores.log_probs.sum(), leaf, retain_graph=True)[0]
    assert_same_bits(torch.autograd.grad(scores.log_probs.sum(), leaf, retain_graph=True)[0], first)
    both = torch.autograd.grad(scores.log_probs.sum() + scores.entropy.sum(), leaf, retain_graph=True)[0]
    alone = torch.autograd.grad(scores.entropy.sum(), leaf)[0]
    torch.testing.assert_close(both, first + alone)


def test_scores_may_be_changed_in_place() -> None:
    leaf = random_rows(3, 129, torch.float32)[0].requires_grad_()
    scores = token_log_probs(leaf, torch.tensor([1, 2, 3])).log_probs
    scores.mul_(2.0)
    scores.sum().backward()
    assert leaf.grad.isfinite().all()


def test_double_backward_raises() -> None:
    leaf = random_rows(3, 129, torch.float32)[0].requires_grad_()
    scores = token_log_probs(leaf, torch.tensor([1, 2, 3])).log_probs
    with pytest.raises(RuntimeError, match="double backward of token log-probs: expected first derivatives only"):
        torch.autograd.grad(scores.sum(), leaf, create_graph=True)


def test_the_reference_can_be_differentiated_twice() -> None:
    logits, targets = random_rows(2, 5, torch.float64, scale=1.0)
    leaf = logits.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: token_log_probs(x, targets, impl="reference").log_probs, (leaf,))


def test_logits_changed_before_backward_raise() -> None:
    logits = random_rows(3, 129, torch.float32)[0].requires_grad_() * 1.0
    scores = token_log_probs(logits, torch.tensor([1, 2, 3])).log_probs
    logits.mul_(2.0)
    with pytest.raises(RuntimeError, match="expected the logits as they were in forward"):
        scores.sum().backward()


class TestGradientIntoLogits:
    """The gradient overwrites the logits' own memory, where that harms nobody."""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
    @pytest.mark.parametrize("rows", [None, [4, 1, 2]])
    def test_it_is_the_same_gradient_in_the_logits_memory(self, dtype: torch.dtype, rows: list[int] | None) -> None:
        leaf, targets = random_rows(6, 2500, dtype)
        leaf.requires_grad_()
        targets = targets if rows is None else targets[rows]
        options = {"rows": rows, "entropy": "grad", "valid_vocab_size": 2400}
        targets %= 2400
        fresh = token_log_probs(leaf * 1.0, targets, **options)
        expected = torch.autograd.grad(fresh.log_probs.sum() + fresh.entropy.sum(), leaf)[0]
        logits = leaf * 1.0
        scores = token_log_probs(logits, targets, grad_into_logits=True, **options)
        got = torch.autograd.grad(scores.log_probs.sum() + scores.entropy.sum(), leaf)[0]
        assert_same_bits(got, expected)
        assert_same_bits(logits.detach(), expected)

    def test_a_second_backward_raises(self) -> None:
        leaf = random_rows(3, 129, torch.float32)[0].requires_grad_()
        scores = token_log_probs(leaf * 1.0, torch.tensor([1, 2, 3]), grad_into_logits=True).log_probs
        torch.autograd.grad(scores.sum(), leaf, retain_graph=True)
        with pytest.raises(RuntimeError, match="second backward"):
            torch.autograd.grad(scores.sum(), leaf)

    def test_whoever_else_saved_the_logits_is_told(self) -> None:
        leaf = random_rows(3, 129, torch.float32)[0].requires_grad_()
        logits = leaf * 1.0
        squares = logits.square()
        scores = token_log_probs(logits, torch.tensor([1, 2, 3]), grad_into_logits=True).log_probs
        scores.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squares.sum().backward()

    def test_another_call_on_the_same_logits_is_told(self) -> None:
        logits = random_rows(3, 129, torch.float32)[0].requires_grad_() * 1.0
        first = token_log_probs(logits, torch.tensor([1, 2, 3]), grad_into_logits=True).log_probs
        second = token_log_probs(logits, torch.tensor([4, 5, 6])).log_probs
        first.sum().backward()
        with pytest.raises(RuntimeError, match="let each call have its own gradient"):
            second.sum().backward()

    def test_a_leaf_is_refused(self) -> None:
        leaf = torch.randn(3, 129, requires_grad=True)
        with pytest.raises(InputError, match="leaf that requires grad"):
            token_log_probs(leaf, torch.tensor([1, 2, 3]), grad_into_logits=True)

    def test_logits_that_their_maker_keeps_are_refused(self) -> None:
        logits = torch.randn(1, 3, 129, requires_grad=True).tanh()[0]
        with pytest.raises(InputError, match=r"Tanh.*keeps them for its own backward"):
            token_log_probs(logits, torch.tensor([1, 2, 3]), grad_into_logits=True)

    @pytest.mark.parametrize("view", ["chunk", "split", "unbind", "narrow", "diagonal"])
    def test_a_view_of_any_kind_does_not_hide_the_maker(self, view: str) -> None:
        kept = torch.randn(2, 6, 129, requires_grad=True).exp().view(2, 2, 3, 129)
        views = {
            "chunk": lambda: kept.chunk(2, 1)[1],
            "split": lambda: kept.view(12, 129).split([3, 9])[0],
            "unbind": lambda: kept.unbind(0)[0],
            "narrow": lambda: kept.transpose(0, 1).narrow(2, 0, 2),
            "diagonal": lambda: kept.diagonal(0, 0, 1).permute(2, 0, 1),
        }
        logits = views[view]()
        with pytest.raises(InputError, match=r"Exp.*keeps them for its own backward"):
            token_log_probs(logits, torch.zeros(logits.shape[:-1], dtype=torch.int64), grad_into_logits=True)

    def test_a_view_of_a_leaf_is_refused(self) -> None:
        leaf = torch.randn(6, 129, requires_grad=True)
        with pytest.raises(InputError, match="or a view of one"):
            token_log_probs(leaf.view(2, 3, 129), torch.zeros(2, 3, dtype=torch.int64), grad_into_logits=True)

    def test_views_of_plain_logits_are_fine(self) -> None:
        leaf = random_rows(4, 129, torch.float32)[0].requires_grad_()
        logits = (leaf * 1.0).view(2, 2, 129).split(1)[0]
        scores = token_log_probs(logits, torch.tensor([[1, 2]]), grad_into_logits=True).log_probs
        got = torch.autograd.grad(scores.sum(), leaf)[0]
        expected = torch.autograd.grad(token_log_probs(leaf, torch.tensor([1, 2]), rows=[0, 1]).log_probs.sum(), leaf)[
            0
        ]
        assert_same_bits(got, expected)

    def test_expanded_logits_are_refused(self) -> None:
        logits = torch.randn(1, 129, requires_grad=True).exp().neg().expand(3, 129)
        with pytest.raises(InputError, match="memory of their own"):
            token_log_probs(logits, torch.tensor([1, 2, 3]), grad_into_logits=True)

    def test_without_gradient_nothing_is_written(self) -> None:
        logits, targets = random_rows(3, 129, torch.float32)
        before = logits.clone()
        token_log_probs(logits, targets, grad_into_logits=True)
        assert_same_bits(logits, before)


class TestGradientBuffer:
    """The gradient is written into a tensor of the caller's."""

    def test_it_is_the_gradient_whatever_the_buffer_held(self) -> None:
        logits, targets = random_rows(5, 2500, torch.bfloat16)
        leaf, buffer = logits.requires_grad_(), torch.full_like(logits, torch.nan)
        rows = torch.tensor([3, 0])
        expected = torch.autograd.grad(token_log_probs(leaf, targets[rows], rows=rows).log_probs.sum(), leaf)[0]
        scores = token_log_probs(leaf, targets[rows], rows=rows, grad_buffer=buffer).log_probs
        (got,) = torch.autograd.grad(scores.sum(), leaf, retain_graph=True)
        assert got.data_ptr() == buffer.data_ptr()
        assert_same_bits(got, expected)
        with pytest.raises(RuntimeError, match="second backward"):
            torch.autograd.grad(scores.sum(), leaf)

    @pytest.mark.parametrize(
        ("buffer", "message"),
        [
            (torch.empty(5, 128), r"expected \[5, 129\]"),
            (torch.empty(5, 129, dtype=torch.bfloat16), "of torch.float32"),
            (torch.empty(5, 129, requires_grad=True), "plain tensor"),
            (torch.empty(1, 129).expand(5, 129), "memory of their own"),
        ],
    )
    def test_a_buffer_unlike_the_logits_is_refused(self, buffer: Tensor, message: str) -> None:
        with pytest.raises(InputError, match=message):
            token_log_probs(torch.randn(5, 129), torch.arange(5), grad_buffer=buffer)

    def test_the_logits_are_no_buffer(self) -> None:
        logits = torch.randn(5, 129)
        with pytest.raises(InputError, match="grad_into_logits=True"):
            token_log_probs(logits, torch.arange(5), grad_buffer=logits)
        with pytest.raises(InputError, match="one place"):
            token_log_probs(logits, torch.arange(5), grad_buffer=torch.empty(5, 129), grad_into_logits=True)


@pytest.mark.parametrize(
    "transform",
    [
        lambda score: torch.compile(score, backend="eager", fullgraph=True),
        lambda score: lambda x: torch.vmap(score)(x.expand(2, 3, 129)),
        lambda score: torch.func.grad(lambda x: score(x).sum()),
    ],
    ids=["fullgraph", "vmap", "torch.func"],
)
def test_transforms_that_are_not_supported_raise(transform: Any) -> None:
    """They never return a wrong number: torch itself refuses."""
    score = transform(lambda x: token_log_probs(x, torch.tensor([1, 2, 3])).log_probs)
    with pytest.raises(Exception, match=r"torch.compiler.disable|vmap|functorch"):
        score(torch.randn(3, 129))
