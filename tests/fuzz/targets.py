"""What is fuzzed: functions that take bytes from anywhere, and check what has to hold whatever they are.

Each writes the bytes as a file, or as one file of a good run folder, and reads it as a user would. A file is read, or
refused with `InputError`; a store skips what is damaged. Nothing else is raised, nothing runs, no file appears.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logparity.errors import InputError
from logparity.integrations.readers import read_dumps, read_verl_log
from logparity.probe import Probe, ProbeConfig, StoreConfig, analyze_folder, open_run
from logparity.probe.measured import measured_run
from logparity.probe.store.schemas import Tier
from logparity.probe.store.summary import read_state

Target = Callable[[bytes], None]

MAX_BYTES = 50_000_000
ROLLOUT, OLD = [[-1.0, -2.0, -0.5], [-3.0, -0.25, -1.0]], [[-1.5, -2.0, -0.5], [-1.0, -0.25, -1.5]]


class BrokenLawError(Exception):
    """A law does not hold."""


def read_file(name: str, content: bytes) -> None:
    """Read a file of dumps."""
    with folder() as place:
        (place / name).write_bytes(content)
        with nothing_new(place), contextlib.suppress(InputError):
            for dump in read_dumps(place / name, max_bytes=MAX_BYTES):
                dump.pairs()


def npz_member(content: bytes) -> None:
    """The bytes are an array in an archive whose own checksums are right."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("old_log_probs.npy", content)
        archive.writestr("rollout_log_probs.npy", array_file(OLD))
    read_file("a.npz", buffer.getvalue())


def npy_folder(content: bytes) -> None:
    """The bytes are one of two arrays in a folder."""
    with folder() as place:
        (place / "old_log_probs_step_3.npy").write_bytes(content)
        (place / "rollout_log_probs_step_3.npy").write_bytes(array_file(ROLLOUT))
        with nothing_new(place), contextlib.suppress(InputError):
            for dump in read_dumps(place, max_bytes=MAX_BYTES):
                dump.pairs()


def pair_file(name: str, content: bytes) -> None:
    """The bytes are one of the files that belong to a pair."""
    with folder() as place:
        np.save(place / "prob_diff_step_3.npy", np.full((2, 3), 0.25, np.float32))
        np.save(place / "prob_mask_step_3.npy", np.ones((2, 3), bool))
        (place / name).write_bytes(content)
        with nothing_new(place), contextlib.suppress(InputError):
            analyze_folder(place)


def verl_log(content: bytes) -> None:
    """The log of verl's file tracker."""
    with folder() as place:
        (place / "a.jsonl").write_bytes(content)
        with nothing_new(place), contextlib.suppress(InputError):
            list(read_verl_log(place / "a.jsonl", max_bytes=MAX_BYTES))


def store_file(name: str, content: bytes) -> None:
    """The bytes are one file of a run folder; commit markers are made to fit its size."""
    with folder() as place:
        run = place / "run"
        shutil.copytree(good_run(), run)
        (path,) = run.rglob(name)
        path.write_bytes(content)
        marker = path.parent / "commit-00000000.json"
        if path.suffix == ".parquet":
            data = json.loads(marker.read_text())
            for entry in data["files"].values():
                if entry["name"] == name:
                    entry["bytes"] = len(content)
            marker.write_text(json.dumps(data))
        with nothing_new(place), contextlib.suppress(InputError):
            opened = open_run(run)
            measured_run(opened)
            opened.alarms()
            for tier in Tier:
                list(opened.rows(tier))


def store_state(content: bytes) -> None:
    """The bytes are the text of a stored state."""
    with contextlib.suppress(InputError):
        read_state(zlib.compress(content))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder of its own, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        yield Path(place)


@contextlib.contextmanager
def nothing_new(place: Path) -> Iterator[None]:
    """Reading makes, changes, and removes no file."""
    before = contents(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    if contents(place) != before:
        raise BrokenLawError(f"reading changed the folder: {sorted(contents(place).keys() ^ before.keys())}")


def contents(place: Path) -> dict[str, int]:
    """Names and sizes of everything below a folder."""
    return {str(path.relative_to(place)): path.stat().st_size for path in place.rglob("*") if path.is_file()}


def array_file(values: object) -> bytes:
    """An ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values, np.float32))
    return buffer.getvalue()


@cache
def good_run() -> Path:
    """A run folder of one step with every tier, for as long as the process lives."""
    place = Path(tempfile.mkdtemp(prefix="logparity-fuzz-"))
    store = StoreConfig(tokens_every=1, samples=2)
    with contextlib.closing(
        Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=place, store=store))
    ) as probe:
        probe.observe(step=0, keys=["a", "b"], rollout_log_probs=ROLLOUT, old_log_probs=OLD, token_ids=[[1, 2, 3]] * 2)
    return place


def seeds(target: str) -> list[bytes]:
    """Good inputs to begin with."""
    if target in STORE_FILES:
        return [path.read_bytes() for path in good_run().rglob(STORE_FILES[target])]
    if target == "store_state":
        (path,) = good_run().rglob("summary-*.parquet")
        return [zlib.decompress(pq.read_table(path).to_pylist()[0]["state"])]
    return [_seed(target)]


def _seed(target: str) -> bytes:
    buffer = io.BytesIO()
    columns = {"rollout_log_probs": ROLLOUT, "old_log_probs": OLD, "response_mask": [[1, 1, 0], [1, 1, 1]]}
    if target == "npz":
        np.savez(buffer, **{name: np.asarray(value, np.float32) for name, value in columns.items()})
    elif target in ("npz_member", "npy_folder", "pair_diff"):
        return array_file(OLD)
    elif target == "pt":
        import torch

        torch.save({name: torch.tensor(value) for name, value in columns.items()}, buffer)
    elif target == "parquet":
        pq.write_table(pa.table({"step": [1, 1], **columns}), buffer)
    elif target == "pair_keys":
        return b'{"keys": ["a", "b"]}'
    elif target == "verl_log":
        return b'{"step": 1, "data": {"a": 1.5, "b": NaN}}\n'
    else:
        lines = [{name: value[row] for name, value in columns.items()} | {"step": 1} for row in range(2)]
        return "\n".join(map(json.dumps, lines)).encode()
    return buffer.getvalue()


STORE_FILES: Mapping[str, str] = {
    "store_run": "logparity-run.json",
    "store_attempt": "attempt.json",
    "store_marker": "commit-00000000.json",
    "store_summary": "summary-00000000.parquet",
    "store_worst": "worst-00000000.parquet",
    "store_samples": "samples-00000000.parquet",
    "store_tokens": "tokens-00000000.parquet",
}


def _file(name: str, read: Callable[[str, bytes], None]) -> Target:
    return lambda content: read(name, content)


TARGETS: Mapping[str, Target] = {
    **{kind: _file(f"a.{kind}", read_file) for kind in ("jsonl", "npz", "parquet", "pt")},
    "npz_member": npz_member,
    "npy_folder": npy_folder,
    "pair_diff": _file("prob_diff_step_3.npy", pair_file),
    "pair_keys": _file("prob_diff_step_3.keys.json", pair_file),
    "verl_log": verl_log,
    "store_state": store_state,
    **{target: _file(name, store_file) for target, name in STORE_FILES.items()},
}
