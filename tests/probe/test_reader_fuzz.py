"""Whatever stands in a run folder, the reader neither crashes nor hangs nor leaves the folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logparity.errors import InputError
from logparity.probe import Probe, ProbeConfig, StoreConfig, open_run
from logparity.probe.measured import measured_run
from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.store.schemas import Tier
from logparity.probe.store.summary import read_state
from tests.support.captured import batch_of, measure, ragged_rows

ROLLOUT, TRAIN = [[-1.0, -2.0], [-3.0]], [[-1.5, -2.0], [-1.0]]
KEYS = ("version", "seq", "step", "sub_step", "files", "pruned", "alarms", "dropped_calls")
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run")
    probe = Probe(
        ProbeConfig(enabled=True, strict=True, background=False, run_dir=folder, store=StoreConfig(tokens_every=1))
    )
    for step in range(2):
        probe.observe(
            step=step, keys=["a", "b"], rollout_log_probs=[[-1.0, -2.0], [-3.0]], old_log_probs=[[-1.5, -2.0], [-1]]
        )
    probe.close()
    yield folder
    shutil.rmtree(folder)


def read_all(folder: Path) -> None:
    with contextlib.suppress(InputError):
        opened = open_run(folder, verify=False)
        measured_run(opened)
        for tier in Tier:
            list(opened.rows(tier))


@FUZZ
@given(data=st.data())
def test_flipped_bytes_cost_their_part_only(run: Path, data: st.DataObject) -> None:
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
    path = data.draw(st.sampled_from(files))
    original = path.read_bytes()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        path.write_bytes(bytes(damaged))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_all(run)
    finally:
        path.write_bytes(original)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@FUZZ
@given(
    key=st.sampled_from(["version", "seq", "step", "sub_step", "files", "pruned", "alarms", "dropped_calls"]),
    value=JSON,
)
def test_any_json_in_a_marker_is_skipped_or_read(run: Path, key: str, value: Any) -> None:
    marker = run / "rank-00000" / "attempt-0001" / "commit-00000000.json"
    original = marker.read_text()
    try:
        marker.write_text(json.dumps({**json.loads(original), key: value}))
        read_all(run)
    finally:
        marker.write_text(original)


STATE = measure(batch_of(ragged_rows(0, 4, 10))).to_json()


@FUZZ
@given(path=st.lists(st.integers(0, 5), min_size=1, max_size=4), value=JSON)
def test_any_state_is_refused_or_read(path: list[int], value: Any) -> None:
    state = json.loads(json.dumps(STATE))
    place: Any = state
    for step in path[:-1]:
        inner = list(place.values()) if isinstance(place, dict) else place
        if not isinstance(inner, list) or not inner or not isinstance(inner[step % len(inner)], (dict, list)):
            break
        place = inner[step % len(inner)]
    if isinstance(place, dict) and place:
        place[list(place)[path[-1] % len(place)]] = value
    with contextlib.suppress(InputError):
        assert isinstance(read_state(zlib.compress(json.dumps(state).encode())), UnitMetrics)


@pytest.mark.parametrize(
    "state",
    [b"", b"x", zlib.compress(b"[" * 100_000), zlib.compress(b"{}"), zlib.compress(b" " * (65 << 20))],
    ids=["empty", "no zlib", "deep", "no keys", "bomb"],
)
def test_hostile_states_are_refused(state: bytes) -> None:
    with pytest.raises(InputError, match="state"):
        read_state(state)
