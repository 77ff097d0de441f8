from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from logparity.errors import ModelError
from logparity.models.cache import cache_folder, make_once
from logparity.models.manifest import damage

BIG = 17 * 1024 * 1024


def fill(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "small.json").write_text("{}")
    (folder / "big.bin").write_bytes(b"\0" * BIG)


def test_a_folder_is_made_once_and_reused(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        fill(folder)

    first = make_once(tmp_path / "cache" / "model", make)
    assert make_once(tmp_path / "cache" / "model", make) == first
    assert len(calls) == 1
    assert (first / "sub" / "small.json").read_text() == "{}"


def test_a_failure_leaves_nothing_behind_and_can_be_retried(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "big.bin").touch()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        make_once(tmp_path / "model", half)
    assert [p.name for p in tmp_path.iterdir()] == ["model.lock"]
    assert damage(make_once(tmp_path / "model", fill), full=True) is None


@pytest.mark.parametrize("file", ["sub/small.json", "big.bin"])
def test_a_missing_or_shortened_file_is_noticed_and_repaired(tmp_path: Path, file: str) -> None:
    folder = make_once(tmp_path / "model", fill)
    (folder / file).write_bytes(b"")
    assert "bytes, expected" in (damage(folder) or "")
    (folder / file).unlink()
    assert damage(folder) == f"{file} is missing"
    make_once(folder, fill)
    assert damage(folder, full=True) is None


def test_a_flipped_bit_in_a_large_file_is_noticed_by_the_full_check_only(tmp_path: Path) -> None:
    folder = make_once(tmp_path / "model", fill)
    (folder / "big.bin").write_bytes(b"\0" * (BIG - 1) + b"\1")
    assert damage(folder) is None
    assert damage(folder, full=True) == "big.bin differs from its checksum"
    make_once(folder, fill, full=True)
    assert damage(folder, full=True) is None


def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def slow(folder: Path) -> None:
        calls.append(1)
        time.sleep(0.3)
        (folder / "small").touch()

    threads = [threading.Thread(target=make_once, args=(tmp_path / "model", slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_the_environment_moves_the_cache_and_an_argument_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPARITY_CACHE", str(tmp_path / "env"))
    assert cache_folder() == tmp_path / "env"
    assert cache_folder(tmp_path / "argument") == tmp_path / "argument"
    monkeypatch.delenv("LOGPARITY_CACHE")
    assert "logparity" in cache_folder().parts


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot write .*LOGPARITY_CACHE"):
        make_once(tmp_path / "file" / "model", fill)
