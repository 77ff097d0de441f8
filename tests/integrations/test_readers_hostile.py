"""Files that lie: nothing is executed, nothing large is allocated, and every refusal names the file."""

import contextlib
import io
import json
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logparity.errors import InputError
from logparity.integrations.readers import read_dumps, read_verl_log
from tests.support.rollouts import PAIRS


class Payload:
    """Runs when unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("/tmp/logparity-was-executed"),))


def refused(source: Path, match: str = ".") -> None:
    with pytest.raises(InputError, match=match):
        list(read_dumps(source))
    assert not Path("/tmp/logparity-was-executed").exists()


def npz_with(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for other in {"rollout_log_probs", "old_log_probs"} - {name}:
            buffer = io.BytesIO()
            np.save(buffer, np.zeros((1, 2), np.float32))
            archive.writestr(f"{other}.npy", buffer.getvalue())
        archive.writestr(f"{name}.npy", content)


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def test_pickles_in_every_wrapping_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", rollout_log_probs=np.array([Payload()]), old_log_probs=np.zeros(1))
    refused(tmp_path / "a.npz", "objects")
    torch.save({"rollout_data": {"log_probs": Payload()}}, tmp_path / "b.pt")
    refused(tmp_path / "b.pt", "run code")
    (tmp_path / "c.pt").write_bytes(pickle.dumps(Payload()))
    refused(tmp_path / "c.pt")
    folder = tmp_path / "d"
    folder.mkdir()
    for name in ("rollout_log_probs", "old_log_probs"):
        np.save(folder / f"{name}.npy", np.array([Payload()], dtype=object))
    refused(folder, "plain .npy")


@pytest.mark.parametrize("shape", ["(1000000, 1000000)", "(9223372036854775807, 2)", "(-1, 2)"])
def test_a_header_that_promises_too_much_allocates_nothing(tmp_path: Path, shape: str) -> None:
    npz_with(tmp_path / "a.npz", "old_log_probs", header(shape) + b"\0" * 8)
    tracemalloc.start()
    refused(tmp_path / "a.npz", r"a\.npz|old_log_probs")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_bomb_is_refused_by_its_declared_size(tmp_path: Path) -> None:
    npz_with(tmp_path / "a.npz", "old_log_probs", header("(8000000,)") + b"\0" * 32_000_000)
    assert (tmp_path / "a.npz").stat().st_size < 100_000
    with pytest.raises(InputError, match="at most 1,000,000 bytes"):
        list(read_dumps(tmp_path / "a.npz", max_bytes=1_000_000))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("[" * 100_000, "line 1"),
        ('{"step": 1, "a": ' + "[" * 5000 + "]" * 5000 + "}", "line 1"),
        ('{"rollout_log_probs": [1e999, ' + "9" * 5000 + '], "old_log_probs": [0]}', "line 1"),
        ('{"rollout_log_probs": ["0.5"], "old_log_probs": [-1]}', "expected numbers"),
        ('{"rollout_log_probs": {"a": 1}, "old_log_probs": [-1]}', "got dict"),
        ('{"rollout_log_probs": [[[1]]], "old_log_probs": [-1]}', "expected"),
        ('{"rollout_log_probs": [-1], "old_log_probs": [-1], "loss_mask": [null]}', "NaN or null"),
        ("[]", "JSON object"),
        ("\x00\xff", "line 1"),
        ("", "at least one sequence"),
    ],
)
def test_hostile_json(tmp_path: Path, line: str, match: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    refused(path, match)


def test_values_beyond_float32_count_as_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"rollout_log_probs": [-1e300, -1], "old_log_probs": [NaN, -1]}\n')
    (dump,) = read_dumps(path)
    assert np.isneginf(dump.rollout_log_probs[0][0])
    assert np.isnan(dump.old_log_probs[0][0])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_never_crashes(tmp_path_factory, data: st.DataObject) -> None:
    """Bytes of a good file flipped, cut, or put in."""
    folder = tmp_path_factory.mktemp("fuzz")
    suffix = data.draw(st.sampled_from([".npz", ".jsonl", ".pt", ".parquet"]))
    content = bytearray(good_file(suffix))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if action == "flip":
            content[at] ^= data.draw(st.integers(1, 255))
        elif action == "cut":
            del content[max(at, 1) :]
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=16))
    path = folder / f"a{suffix}"
    path.write_bytes(bytes(content))
    try:
        for dump in read_dumps(path, max_bytes=50_000_000):
            dump.pairs()
    except InputError:
        pass
    assert [p.name for p in folder.iterdir()] == [path.name]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {"rollout_log_probs": JSON, "old_log_probs": JSON},
        optional={"loss_mask": JSON, "token_ids": JSON, "step": JSON, "lengths": JSON, "offsets": JSON, "key": JSON},
    )
)
def test_any_json_under_the_right_names(tmp_path_factory, row: dict) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({"step": 1, "data": row}) + "\n")
    for read in (read_dumps, read_verl_log):
        with contextlib.suppress(InputError):
            list(read(path))


def good_file(suffix: str) -> bytes:
    """A small readable file of a format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = np.load(PAIRS / "clean_vllm_bf16_vs_hf_bf16.npz", allow_pickle=False)
    arrays = {n: source[n][:2, :6] for n in ("rollout_log_probs", "old_log_probs", "response_mask")}
    buffer = io.BytesIO()
    if suffix == ".npz":
        np.savez_compressed(buffer, **arrays)
    elif suffix == ".pt":
        torch.save({n: torch.from_numpy(a) for n, a in arrays.items()}, buffer)
    elif suffix == ".parquet":
        pq.write_table(pa.table({n: a.tolist() for n, a in arrays.items()}), buffer)
    else:
        lines = [{n: a[row].tolist() for n, a in arrays.items()} for row in range(2)]
        buffer.write("\n".join(map(json.dumps, lines)).encode())
    return buffer.getvalue()
