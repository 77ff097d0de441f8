from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logparity.errors import InputError
from logparity.layout.padded import pad_sequences, split_by_response

ids = st.integers(0, 999)
sequence = st.tuples(st.lists(ids, min_size=1, max_size=9), st.lists(st.tuples(ids, st.booleans()), max_size=9))


@given(batch=st.lists(sequence, min_size=1, max_size=6))
def test_rows_point_right_before_their_targets(batch: list) -> None:
    prompts = [np.array(p) for p, _ in batch]
    responses = [np.array([t for t, _ in r], dtype=np.int64) for _, r in batch]
    wanted = [np.array([w for _, w in r], dtype=bool) for _, r in batch]
    padded = pad_sequences(prompts, responses, wanted=wanted, pad_id=-7)
    flat = padded.input_ids.flatten().numpy()
    assert flat[padded.rows.numpy() + 1].tolist() == padded.targets.tolist()
    assert padded.targets.tolist() == [t for r, w in zip(responses, wanted, strict=True) for t in r[w]]
    assert padded.sequence_ids.tolist() == [b for b, w in enumerate(wanted) for _ in range(int(w.sum()))]
    assert padded.positions.tolist() == [j for w in wanted for j in np.flatnonzero(w)]
    width = padded.input_ids.shape[1]
    assert (padded.rows // width).tolist() == padded.sequence_ids.tolist()  # no row looks into a neighbour
    for row, prompt, response in zip(padded.input_ids.numpy(), prompts, responses, strict=True):
        real = [*prompt, *response]
        assert row[: len(real)].tolist() == real
        assert (row[len(real) :] == -7).all()


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_splitting_undoes_the_flattening(lengths: list[int]) -> None:
    responses = [np.arange(n) for n in lengths]
    padded = pad_sequences([np.array([1])] * len(lengths), responses)
    parts = split_by_response(padded.targets.float(), responses)
    assert [p.dtype for p in parts] == [np.float32] * len(lengths)
    assert [p.tolist() for p in parts] == [r.tolist() for r in responses]


def test_bad_batches_are_refused() -> None:
    one = [np.array([1, 2])]
    with pytest.raises(InputError, match="at least one"):
        pad_sequences([], [])
    with pytest.raises(InputError, match="prompt_length: expected >= 1, got 0"):
        pad_sequences([np.array([], dtype=np.int64)], one)
    with pytest.raises(InputError, match=r"wanted\[0\]: expected 2 values, one per response id, got 3"):
        pad_sequences(one, one, wanted=[np.array([True, True, True])])
    with pytest.raises(InputError, match="expected 2, one per response token, got 3"):
        split_by_response(pad_sequences(one, [np.arange(3)]).targets, one)
