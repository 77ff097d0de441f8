"""Whatever goes wrong on one rank is raised on all of them: nobody hangs, nobody dies, and the next call works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from logparity.errors import InputError, LogparityError, SupportError
from logparity.ops import Support, TokenLogProbs, linear_token_log_probs, on_policy_token_log_probs, token_log_probs
from logparity.parallel import VocabShard
from tests.support.collectives import CountCollectives
from tests.support.spawn import spawn

pytestmark = pytest.mark.distributed

VOCAB, CUT, TOKENS, HIDDEN = 3001, 1500, 9, 8
Changes = dict[str, Any]
Score = Callable[..., TokenLogProbs]


def _arguments(rank: int) -> Changes:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, VOCAB, generator=draw)
    targets = torch.randint(VOCAB, (TOKENS,), generator=draw)
    targets[2] = -100  # payloads must not depend on how many targets a rank believes to be ignored
    start, stop = ((0, CUT), (CUT, VOCAB))[rank]
    return {"logits": logits[:, start:stop], "targets": targets, "shard": VocabShard(start, stop)}


def _from_hidden(rank: int) -> Changes:
    draw = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(TOKENS, HIDDEN, generator=draw), torch.randn(VOCAB, HIDDEN, generator=draw)
    start, stop = ((0, CUT), (CUT, VOCAB))[rank]
    plain = _arguments(rank)
    return {"hidden": hidden, "weight": weight[start:stop], "targets": plain["targets"], "shard": plain["shard"]}


def _off_the_vocabulary() -> Tensor:
    targets = _arguments(0)["targets"].clone()
    targets[0] = 99999
    return targets


def _bad_on_one_rank() -> dict[str, tuple[Changes, str]]:
    """Wrong arguments that every operation knows, with what its error says."""
    return {
        "target": ({"targets": _off_the_vocabulary()}, "targets: expected ids"),
        "temperature 0": ({"temperature": 0.0}, "temperature: expected a finite number > 0"),
        "no temperature": ({"temperature": None}, "temperature: .* got NoneType None"),
        "targets of floats": ({"targets": torch.zeros(TOKENS)}, "targets: expected an int64"),
        "targets that are none": ({"targets": None}, "targets: expected an int64"),
        "too few targets": ({"targets": torch.zeros(TOKENS - 1, dtype=torch.int64)}, r"targets: expected shape \[9\]"),
        "entropy": ({"entropy": "yes"}, "entropy: expected"),
        "valid_vocab_size": ({"valid_vocab_size": "2"}, "valid_vocab_size: expected"),
        "chunk_size": ({"chunk_size": 0}, "chunk_size: expected"),
    }


_OPTIONS: dict[str, tuple[Changes, str]] = {
    "rows": ({"rows": "a"}, "rows: expected int64"),
    "impl": ({"impl": "fast"}, "impl: expected"),
    "softcap": ({"logit_softcap": "30"}, "logit_softcap: expected"),
}


def _only_logits() -> dict[str, tuple[Changes, str]]:
    return {
        "integer logits": ({"logits": torch.zeros(TOKENS, CUT, dtype=torch.int64)}, "logits: expected .* torch.int64"),
        "no logits": ({"logits": None}, "logits: expected"),
        "width": ({"logits": torch.zeros(TOKENS, CUT - 1)}, "the width of the shard"),
    }


def _only_hidden() -> dict[str, tuple[Changes, str]]:
    return {
        "dtype": ({"hidden": torch.zeros(TOKENS, HIDDEN).bfloat16()}, "weight: expected torch.bfloat16"),
        "weight of another shape": ({"weight": torch.zeros(CUT, HIDDEN + 1)}, r"weight: expected \[V_local, H\]"),
        "no weight": ({"weight": None}, "weight: expected a floating-point tensor"),
        "bias": ({"bias": [0.0]}, "bias: expected a floating-point tensor"),
    }


def _raises(score: Score, good: Changes, bad: Changes | None, message: str, told: str = "on rank 0 of") -> None:
    """The rank with bad arguments raises its error; the other raises it too, naming the rank."""
    with pytest.raises(InputError, match=message if bad is not None else f"{told}.*{message}"):
        score(**good | (bad or {}))


def _failures(rank: int, size: int) -> None:
    plain, hidden = _arguments(rank), _from_hidden(rank)
    everywhere = _bad_on_one_rank()
    calls: list[tuple[Score, Changes, dict[str, tuple[Changes, str]]]] = [
        (token_log_probs, plain, everywhere | _OPTIONS | _only_logits()),
        (linear_token_log_probs, hidden, everywhere | _OPTIONS | _only_hidden()),
        (on_policy_token_log_probs, plain, everywhere | _only_logits()),
        (token_log_probs, plain | {"impl": "reference"}, everywhere | _only_logits()),
    ]
    for score, good, cases in calls:
        expected = score(**good).log_probs
        for bad, message in cases.values():
            _raises(score, good, bad if rank == 0 else None, message)
            assert torch.equal(score(**good).log_probs, expected)  # nothing is left over
    _supports(rank, plain)
    _anything_else(rank, plain)


def _supports(rank: int, good: Changes) -> None:
    sets = Support.from_lists([[max(int(t), 0), 5] for t in good["targets"]])
    for wrong in ([[0]] * TOKENS, Support.from_lists([[7]] * TOKENS)):
        with pytest.raises(SupportError, match="support"):
            token_log_probs(**good, support=wrong if rank == 0 else sets)


def _anything_else(rank: int, good: Changes) -> None:
    """Even what nobody thought of: an exception that is not ours, in the midst of the work."""

    def out_of_memory(*_: object) -> None:
        raise MemoryError("no room for a block")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr("logparity.ops.chunked.local_statistics", out_of_memory)
        expected = (MemoryError, "no room") if rank == 0 else (LogparityError, "on rank 0 of .*MemoryError: no room")
        with pytest.raises(expected[0], match=expected[1]):
            token_log_probs(**good)


def test_what_one_rank_cannot_do_is_raised_by_all() -> None:
    spawn(_failures, 2)


def _disagreements(rank: int, size: int) -> None:
    plain, hidden = _arguments(rank), _from_hidden(rank)
    others = plain["targets"].clone()
    others[4] = (others[4] + 1) % VOCAB
    more_ignored = plain["targets"].clone()
    more_ignored[5] = -100
    sets = Support.from_lists([[max(int(t), 0), 5] for t in plain["targets"]])
    wider = Support.from_lists([[max(int(t), 0), 5, 6] for t in plain["targets"]])
    cases: list[tuple[str, Changes, Changes]] = [
        ("temperature", {}, {"temperature": 0.7}),
        ("temperature", {"temperature": torch.ones(TOKENS)}, {"temperature": torch.full((TOKENS,), 2.0)}),
        ("entropy", {"entropy": "value"}, {"entropy": "grad"}),
        ("entropy", {}, {"entropy": "grad"}),
        ("targets", {}, {"targets": others}),
        ("targets", {}, {"targets": more_ignored}),
        ("valid_vocab_size", {}, {"valid_vocab_size": VOCAB - 1}),
        ("support", {"support": sets}, {"support": wider}),
        ("logit_scale", {}, {"logit_scale": 0.5}),
        ("ignore_index", {}, {"ignore_index": -1, "validate": False}),
    ]
    for name, first, second in cases:
        for score, good in ((token_log_probs, plain), (linear_token_log_probs, hidden)):
            with pytest.raises(
                InputError, match=f"^{name}: expected the same on every rank .* on rank 0 and .* on rank 1"
            ):
                score(**good | (second if rank else first))
    for changed in ({"temperature": 0.7}, {"chunk_size": 2}, {"compute_dtype": torch.float64}, {"entropy": "value"}):
        with pytest.raises(InputError, match="expected the same on every rank"):
            on_policy_token_log_probs(**plain | (changed if rank else {}))
    fewer = {"logits": plain["logits"][1:], "targets": plain["targets"][1:]}
    for score in (token_log_probs, on_policy_token_log_probs):
        with pytest.raises(InputError, match=r"targets: .* got 9 ids .* on rank 0 and 8 ids .* on rank 1"):
            score(**plain | (fewer if rank else {}))


def test_ranks_that_are_asked_for_different_things_find_out() -> None:
    spawn(_disagreements, 2)


def _quiet_and_single(rank: int, size: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for score, arguments in ((token_log_probs, _arguments(rank)), (linear_token_log_probs, _from_hidden(rank))):
            for changed in (
                {},
                {"entropy": "grad"},
                {"targets": arguments["targets"].masked_fill(torch.arange(9) > 3, -100)},
            ):
                score(**arguments | changed)
                with CountCollectives() as forward:
                    score(**arguments | changed)
                assert len(forward.names) == 1, forward.names
        on_policy_token_log_probs(**_arguments(rank))


def test_no_call_warns_and_each_takes_one_collective() -> None:
    spawn(_quiet_and_single, 2)
