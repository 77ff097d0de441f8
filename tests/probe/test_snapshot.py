"""One call in every layout, dtype, and library gives the same rows; what does not fit together is refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from logparity.errors import InputError
from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.snapshot.buffers import BufferPool, Lease
from logparity.probe.snapshot.call import Call

ROLLOUT = [[-0.5, -1.5, -2.5], [-0.25], [-3.0, -4.0]]
TRAIN = [[-0.5, -1.0, -2.0], [-0.75], [-3.5, -4.5]]
MASK = [[1, 0, 1], [1], [1, 1]]
IDS = [[5, 6, 7], [8], [9, 10]]
POOL = BufferPool(4)


def assemble(keys: Any = None, groups: Any = None, lengths: Any = None, **arguments: Any) -> CapturedBatch:
    versions, train_version = arguments.pop("versions", None), arguments.pop("train_version", None)
    return Call.capture(0, 0, arguments, keys, versions, train_version, groups, lengths, POOL).assemble({})


def padded(rows: list[list[float]], fill: float) -> np.ndarray:
    return np.asarray([row + [fill] * (3 - len(row)) for row in rows], np.float64)


def nested(rows: list[list[float]], layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
        return torch.nested.nested_tensor([torch.tensor(row) for row in rows], layout=layout)


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


LAYOUTS: dict[str, Any] = {
    "padded numpy float64": lambda rows, fill: padded(rows, fill),
    "padded torch bfloat16": lambda rows, fill: torch.tensor(padded(rows, fill)).bfloat16(),
    "padded torch float16 with gradient": lambda rows, fill: torch.tensor(padded(rows, fill)).half().requires_grad_(),
    "padded torch, not contiguous": lambda rows, fill: torch.tensor(padded(rows, fill).T.copy()).T,
    "list of lists": lambda rows, _: rows,
    "list of tensors": lambda rows, _: [torch.tensor(row, dtype=torch.bfloat16) for row in rows],
    "tuple of arrays": lambda rows, _: tuple(np.asarray(row, np.float32) for row in rows),
    "nested jagged": lambda rows, _: nested(rows, torch.jagged),
    "nested strided": lambda rows, _: nested(rows, torch.strided),
    "packed": lambda rows, _: np.asarray(flat(rows)),
    "packed list": lambda rows, _: flat(rows),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_tokens(name: str) -> None:
    make = LAYOUTS[name]
    mask = make(MASK, 0)
    if isinstance(mask, torch.Tensor) and mask.requires_grad:
        mask = mask.detach()
    batch = assemble(
        keys=[0, "b", ("c", 1)],
        groups={"env": ["x", "y", "z"]},
        lengths=torch.tensor([3, 1, 2]) if name.startswith("packed") else None,
        rollout_log_probs=make(ROLLOUT, np.nan),
        old_log_probs=make(TRAIN, np.nan),
        response_mask=mask,
        token_ids=make(IDS, 0),
        entropy=make(ROLLOUT, np.nan),
    )
    assert batch.rollout.dtype == batch.train.dtype == np.float32
    assert batch.mask.dtype == np.bool_
    assert batch.rollout[batch.mask].tolist() == [-0.5, -2.5, -0.25, -3.0, -4.0]
    assert batch.train[batch.mask].tolist() == [-0.5, -2.0, -0.75, -3.5, -4.5]
    assert batch.token_ids is not None
    assert batch.token_ids[batch.mask].tolist() == [5, 7, 8, 9, 10]
    assert batch.keys == ("0", "b", "('c', 1)")
    rows = np.searchsorted(batch.starts, np.flatnonzero(batch.mask), side="right") - 1
    assert rows.tolist() == [0, 0, 1, 2, 2]


def test_a_copy_is_a_copy() -> None:
    for make in (lambda x: torch.tensor(x), lambda x: np.asarray(x, np.float32), lambda x: x):
        rollout, train, mask = make([[-1.0, -2.0]]), make([[-1.0, -2.0]]), make([[1, 1]])
        call = Call.capture(
            0,
            0,
            {"rollout_log_probs": rollout, "old_log_probs": train, "response_mask": mask},
            None,
            None,
            None,
            None,
            None,
            POOL,
        )
        for values in (rollout, train, mask):
            values[0][0] = 99
        batch = call.assemble({})
        assert batch.rollout.tolist() == [-1, -2]
        assert batch.train.tolist() == [-1, -2]
        assert batch.mask.all()


def test_bool_and_int32_tensors_are_copied_too() -> None:
    mask, ids = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[3, 4]], dtype=torch.int32)
    arguments = {"rollout_log_probs": -torch.ones(1, 2), "old_log_probs": -torch.ones(1, 2)}
    call = Call.capture(
        0, 0, {**arguments, "response_mask": mask, "token_ids": ids}, None, None, None, None, None, POOL
    )
    mask[:], ids[:] = False, 0
    batch = call.assemble({})
    assert batch.mask.all()
    assert batch.token_ids is not None
    assert batch.token_ids.tolist() == [3, 4]


def test_of_a_wide_mask_the_last_columns_count() -> None:
    wide = np.asarray([[1, 1, 0, 1, 0], [1, 1, 1, 0, 0]])
    batch = assemble(rollout_log_probs=-np.ones((2, 3)), old_log_probs=-np.ones((2, 3)), response_mask=wide)
    assert batch.mask.tolist() == [False, True, False, True, False, False]


def test_none_is_missing_token_or_whole_row() -> None:
    batch = assemble(rollout_log_probs=[[-1.0, None], None], old_log_probs=[[-1.0, -2.0], [-3.0]])
    assert batch.missing is not None
    assert batch.missing.tolist() == [False, True, True]


def test_versions_per_sample_and_per_token_give_a_lag() -> None:
    rows = {"rollout_log_probs": ROLLOUT, "old_log_probs": TRAIN}
    assert assemble(**rows, versions=[1, 3, 2], train_version=3).lag.tolist() == [2, 0, 1]  # type: ignore[union-attr]
    per_token = assemble(**rows, versions=[[1, 1, 2], [3], [2, 3]], train_version=3).lag
    assert per_token is not None
    assert per_token.tolist() == [2, 2, 1, 0, 1, 0]
    assert assemble(**rows, versions=[1, 3, 2]).lag is None


def test_keys_that_no_file_can_hold_are_made_to_fit() -> None:
    long = ["x" * 5000 + "a", "x" * 5000 + "b", "\ud800"]
    keys = assemble(keys=long, rollout_log_probs=ROLLOUT, old_log_probs=TRAIN).keys
    assert len(set(keys)) == 3
    assert all(len(key.encode("utf-8")) <= 256 for key in keys)


def test_a_row_of_two_lengths_goes_alone() -> None:
    batch = assemble(
        keys=["a", "b", "c"],
        groups={"env": ["x", "y", "z"]},
        rollout_log_probs=[[-1.0], [-1.0, -2.0], [-3.0]],
        old_log_probs=[[-1.5], [-1.0], [-3.5]],
        versions=[4, 5, 6],
        train_version=6,
    )
    assert batch.keys == ("a", "c")
    assert batch.groups["env"] == ("x", "z")
    assert batch.train.tolist() == [-1.5, -3.5]
    assert batch.lag is not None
    assert batch.lag.tolist() == [2, 0]
    assert batch.mismatches[0].key == "b"


ONES = -np.ones((2, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rollout_log_probs": ONES, "old_log_probs": ONES}, "response_mask: a padded"),
        (
            {"rollout_log_probs": ONES, "old_log_probs": ONES[:, :2], "response_mask": ONES},
            r"\(2, 3\).*padded.*\(2, 2\)",
        ),
        ({"rollout_log_probs": ONES, "old_log_probs": ONES[:1], "response_mask": ONES}, r"\(2, 3\).*padded.*\(1, 3\)"),
        ({"rollout_log_probs": ONES[0], "old_log_probs": ONES[0]}, "needs lengths"),
        ({"rollout_log_probs": ONES[0], "old_log_probs": ONES[0], "lengths": [2, 2]}, "expected 4 values.*got 3"),
        ({"rollout_log_probs": ONES[None], "old_log_probs": ONES[None]}, r"\(1, 2, 3\)"),
        ({"rollout_log_probs": [[-1.0]], "old_log_probs": [[-1.0], [-2.0]]}, "1 rows.*list of rows.*2 rows"),
        ({"rollout_log_probs": [[-1.0]], "old_log_probs": [[-1.0]], "keys": ["a", "b"]}, "keys: expected 1"),
        (
            {"rollout_log_probs": [[-1.0]], "old_log_probs": [[-1.0]], "groups": {"env": []}},
            r"groups\['env'\]: expected 1",
        ),
        ({"rollout_log_probs": [["a"]], "old_log_probs": [[-1.0]]}, "expected numbers"),
        ({"rollout_log_probs": np.asarray([{}]), "old_log_probs": [[-1.0]]}, "expected numbers"),
        ({"rollout_log_probs": "text", "old_log_probs": [[-1.0]]}, "got str"),
        ({"rollout_log_probs": [np.ones((2, 2))], "old_log_probs": [[-1.0]]}, "1-D row"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_layout(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        assemble(**arguments)


def test_memory_is_used_again_only_after_it_was_given_back() -> None:
    pool, big = BufferPool(4), np.arange(1 << 17, dtype=np.float32).reshape(1, -1)
    first, second = Lease(pool), Lease(pool)
    one, two = (lease.array(big.shape, np.float32) for lease in (first, second))
    one[:], two[:] = big, -big
    np.testing.assert_array_equal(one, big)
    place = one.__array_interface__["data"][0]
    first.release()
    first.release()
    third = Lease(pool)
    again = [third.array((1, big.size - k), np.float32) for k in range(2)]
    assert again[0].__array_interface__["data"][0] == place
    assert again[1].__array_interface__["data"][0] != place
    np.testing.assert_array_equal(two, -big)
