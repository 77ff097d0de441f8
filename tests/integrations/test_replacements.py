"""The hosts' functions by our operation: no farther from float64 than the plain formula, gradients too."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from logparity.integrations import miles, trl, verl
from logparity.integrations.rebind import rebind

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=str)
def logits(request) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(3, 5, 129, generator=generator) * 3).to(request.param).requires_grad_()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 129, (3, 5), generator=torch.Generator().manual_seed(1))


def truth(logits: torch.Tensor, ids: torch.Tensor, temperature: float = 1.0):
    all_log_probs = (logits.detach().double() / temperature).log_softmax(-1)
    return all_log_probs.gather(-1, ids[..., None])[..., 0], -(all_log_probs.exp() * all_log_probs).sum(-1)


def close(got: torch.Tensor, true: torch.Tensor) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), true, rtol=0, atol=3e-6)


def test_trl(logits, ids) -> None:
    log_probs, entropy = truth(logits, ids, 0.7)
    close(trl.selective_log_softmax(logits, ids, temperature=0.7), log_probs)
    close(trl.entropy_from_logits(logits), truth(logits, ids)[1])
    both = trl.selective_log_softmax_and_entropy(logits, ids, temperature=0.7)
    close(both[0], log_probs)
    close(both[1], entropy)


def test_trl_row_mask_gives_zero_and_no_gradient(logits, ids) -> None:
    mask = torch.ones_like(ids)
    mask[1, 2:] = 0
    log_probs, entropy = trl.selective_log_softmax_and_entropy(logits, ids, row_mask=mask)
    close(log_probs, truth(logits, ids)[0] * mask)
    close(entropy, truth(logits, ids)[1] * mask)
    (log_probs.sum() + entropy.sum()).backward()
    assert not logits.grad[1, 2:].any()
    assert logits.grad[1, :2].any()


def test_trl_several_ids_per_row(logits, ids) -> None:
    several = torch.stack([ids, (ids + 1) % 129, ids], dim=-1)
    got = trl.selective_log_softmax(logits, several)
    for column in range(3):
        close(got[..., column], truth(logits, several[..., column])[0])


def test_verl_gradient_in_place_only_where_asked(logits, ids) -> None:
    expected = torch.autograd.grad(verl.logprobs_from_logits(logits, ids).sum(), logits)[0]
    kept = logits.detach().clone()
    for source, in_place, after in ((logits * 1, False, kept), (logits * 1, True, expected)):
        verl.logprobs_from_logits(source, ids, inplace_backward=in_place).sum().backward()
        assert torch.equal(source.detach(), after)


def test_verl_logits_that_others_need_are_left_alone(logits, ids) -> None:
    """A softcap keeps its output for its own backward: no overwriting, and no error inside verl."""
    capped = torch.tanh(logits)
    verl.logprobs_from_logits(capped, ids, inplace_backward=True).sum().backward()
    assert torch.equal(capped.detach(), torch.tanh(logits.detach()))
    assert logits.grad.isfinite().all()


def test_verl_entropy_has_a_gradient(logits, ids) -> None:
    entropy = verl.entropy_from_logits_with_chunking(logits.reshape(-1, 129), chunk_size=2)
    close(entropy, truth(logits, ids)[1].reshape(-1))
    entropy.sum().backward()
    double = logits.detach().double().requires_grad_()
    all_log_probs = double.log_softmax(-1)
    (-(all_log_probs.exp() * all_log_probs).sum()).backward()
    tolerance = 1e-5 if logits.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(logits.grad.double(), double.grad, rtol=tolerance, atol=tolerance / 10)


def test_miles_shapes_and_values(logits, ids) -> None:
    flat, tokens = logits.reshape(-1, 129), ids.reshape(-1)
    log_probs, entropy = miles.calculate_log_probs_and_entropy(flat, tokens, None, with_entropy=True, chunk_size=4)
    assert log_probs.shape == (15, 1)
    close(log_probs[:, 0], truth(logits, ids)[0].reshape(-1))
    close(entropy, truth(logits, ids)[1].reshape(-1))
    assert entropy.requires_grad
    quiet = miles.calculate_log_probs_and_entropy(flat, tokens, None, with_entropy=True, entropy_no_grad=True)[1]
    assert not quiet.requires_grad
    assert miles.calculate_log_probs_and_entropy(flat, tokens, None)[1] is None
    empty = miles.calculate_log_probs_and_entropy(flat[:0], tokens[:0], None, with_entropy=True)
    assert empty[0].squeeze(-1).shape == empty[1].shape == (0,)


def test_miles_true_on_policy_leaves_the_padded_vocabulary_out(logits, ids) -> None:
    flat, tokens = logits.reshape(-1, 129), ids.reshape(-1) % 100
    log_probs, _ = miles.calculate_log_probs_and_entropy(flat, tokens, None, true_on_policy=True, vocab_size=100)
    close(log_probs, truth(flat[:, :100], tokens)[0])


def test_slime_keeps_log_probs_within_the_replayed_columns(logits, ids) -> None:
    flat, tokens = logits.reshape(-1, 129), ids.reshape(-1)
    keep = torch.rand(15, 129, generator=torch.Generator().manual_seed(2)) < 0.3
    keep[torch.arange(15), tokens] = True
    log_probs, entropy = miles.calculate_log_probs_and_entropy(
        flat, tokens, None, with_entropy=True, log_prob_keep_mask=keep
    )
    inside = flat.detach().double().masked_fill(~keep, -torch.inf).log_softmax(-1)
    close(log_probs[:, 0], inside.gather(1, tokens[:, None])[:, 0])
    close(entropy, truth(logits, ids)[1].reshape(-1))


def test_rebind_reaches_names_bound_before_and_gives_them_back(monkeypatch) -> None:
    home, user, other = (ModuleType(name) for name in ("fakehost.home", "fakehost.user", "fakehostess"))
    home.f = user.alias = other.f = lambda: 1
    for module in (home, user, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    original = home.f
    replaced = rebind("fakehost", original, max)
    assert (home.f, user.alias, other.f) == (max, max, original)
    assert sorted(replaced.names) == ["fakehost.home.f", "fakehost.user.alias"]
    replaced.undo()
    assert (home.f, user.alias) == (original, original)


def test_miles_one_line(monkeypatch, caplog) -> None:
    assert miles.use_token_log_probs(SimpleNamespace()).places == ()
    assert "neither miles nor slime" in caplog.text
    parents = {name: ModuleType(name) for name in ("slime", "slime.utils", "slime.utils.ppo_utils")}
    parents["slime.utils.ppo_utils"].calculate_log_probs_and_entropy = original = lambda: None
    for name, module in parents.items():
        monkeypatch.setitem(sys.modules, name, module)
    replaced = miles.use_token_log_probs()
    assert parents["slime.utils.ppo_utils"].calculate_log_probs_and_entropy is miles.calculate_log_probs_and_entropy
    replaced.undo()
    assert parents["slime.utils.ppo_utils"].calculate_log_probs_and_entropy is original


def samples() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rollout = [-torch.rand(n, generator=generator) for n in (4, 1, 6)]
    train = [r + 0.05 * torch.randn(len(r), generator=generator) for r in rollout]
    masks = [torch.ones(len(r)) for r in rollout]
    masks[2][2:4] = 0
    return rollout, train, masks


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process's first call: the hooks keep one probe."""
    monkeypatch.setenv("LOGPARITY_SAVE_DIR", str(tmp_path))
    miles._probe.cache_clear()
    yield tmp_path
    miles._probe.cache_clear()


def test_postprocess_hook_compares_a_ranks_samples(fresh, caplog) -> None:
    rollout, train, masks = samples()
    data = {"rollout_log_probs": rollout, "log_probs": train, "loss_masks": masks, "sample_indices": [5, 6, 7]}
    caplog.set_level("INFO")
    miles.rollout_data_postprocess(SimpleNamespace(), 12, data)
    diff = np.load(fresh / "rank0" / "prob_diff_step_12.npy")
    expected = torch.cat([abs(a.exp() - b.exp())[m.bool()] for a, b, m in zip(rollout, train, masks, strict=True)])
    assert diff[np.load(fresh / "rank0" / "prob_mask_step_12.npy")].mean() == pytest.approx(
        expected.mean().item(), abs=1e-6
    )
    assert "rollout 12: mismatch/tokens 9" in caplog.text


def test_postprocess_hook_says_what_is_missing_and_never_raises(fresh, caplog) -> None:
    miles.rollout_data_postprocess(SimpleNamespace())
    miles.rollout_data_postprocess(SimpleNamespace(), 1, {"log_probs": [], "loss_masks": None})
    rollout, train, masks = samples()
    miles.rollout_data_postprocess(
        SimpleNamespace(), 2, {"rollout_log_probs": rollout, "log_probs": [x[:1] for x in train], "loss_masks": masks}
    )
    assert "observe_tis" in caplog.text
    assert "got no rollout_log_probs" in caplog.text


def test_tis_hook_compares_and_changes_nothing(fresh) -> None:
    rollout, train, masks = samples()
    loss = torch.rand(11, requires_grad=True)
    train = [x.requires_grad_() for x in train]
    given = {"train_log_probs": train, "rollout_log_probs": rollout, "loss_masks": masks}
    out = miles.observe_tis(SimpleNamespace(), pg_loss=loss, total_lengths=[], response_lengths=[], cp=1, **given)
    assert out[0] is loss
    assert out[1] is masks
    expected = torch.cat([abs(a.exp() - b.exp()) for a, b in zip(rollout, train, strict=True)]).detach()
    torch.testing.assert_close(out[2]["logparity_prob_diff"], expected)
    assert not out[2]["logparity_log_ratio_abs"].requires_grad
    given["rollout_log_probs"] = rollout[:2]
    assert miles.observe_tis(None, pg_loss=loss, total_lengths=[], response_lengths=[], **given)[2] == {}
