"""The ``.npy`` pairs of the probe: names, writing, finding, and opening.

``prob_diff_step_{step}.npy`` (float32 ``[B, R]``) goes with ``prob_mask_step_{step}.npy`` (bool ``[B, R]``) and, where
sample keys are known, ``prob_diff_step_{step}.keys.json``. The first pair of a step has the plain name; later
optimisation sub-steps end in ``_sub{k}``, and a repeat of a step (a resumed run) in ``_attempt{n}`` from 2 on.
"""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logparity.errors import InputError
from logparity.probe.atomic import atomic_file
from logparity.records import BoolArray, FloatArray

_NAME = re.compile(r"prob_(diff|mask)(?:_step_(\d+))?(?:_sub(\d+))?(?:_attempt(\d+))?\.npy")


@dataclass(frozen=True, slots=True, order=True)
class PairName:
    """Which comparison a pair of files holds.

    Args:
        step: training step; -1 where the caller gave none.
        sub_step: optimisation sub-step within it; 0 is the first.
        attempt: 1 for the first time that the step ran.

    Raises:
        InputError: a number is negative or no integer.
    """

    step: int = -1
    sub_step: int = 0
    attempt: int = 1

    @classmethod
    def of(cls, step: int | None, sub_step: int | None = None, attempt: int | None = None) -> PairName:
        """Name from a caller's arguments; None and 0 stand for the first sub-step, None and 1 for the first attempt."""
        numbers = {"step": step, "sub_step": sub_step, "attempt": attempt}
        for name, value in numbers.items():
            if value is not None and (not hasattr(value, "__index__") or operator.index(value) < 0):
                raise InputError(f"{name}: expected an integer >= 0 or None, got {value!r}.")
        return cls(
            -1 if step is None else operator.index(step), operator.index(sub_step or 0), operator.index(attempt or 1)
        )

    @classmethod
    def parse(cls, file_name: str) -> PairName | None:
        """Name of a diff or mask file; None where it is neither."""
        match = _NAME.fullmatch(file_name)
        if match is None:
            return None
        _, step, sub_step, attempt = match.groups()
        return cls(-1 if step is None else int(step), int(sub_step or 0), int(attempt or 1))

    @property
    def label(self) -> str:
        """For people: ``step 3``, ``step 3, sub-step 1``, ``one batch``."""
        parts = ["one batch" if self.step < 0 else f"step {self.step}"]
        parts += [f"sub-step {self.sub_step}"] if self.sub_step else []
        return ", ".join(parts + ([f"attempt {self.attempt}"] if self.attempt > 1 else []))

    @property
    def suffix(self) -> str:
        """The part of the file name after ``prob_diff``."""
        step = "" if self.step < 0 else f"_step_{self.step}"
        return (
            step
            + (f"_sub{self.sub_step}" if self.sub_step else "")
            + (f"_attempt{self.attempt}" if self.attempt > 1 else "")
        )

    def diff_path(self, folder: Path) -> Path:
        """Where the differences are."""
        return folder / f"prob_diff{self.suffix}.npy"

    def mask_path(self, folder: Path) -> Path:
        """Where the mask is."""
        return folder / f"prob_mask{self.suffix}.npy"

    def keys_path(self, folder: Path) -> Path:
        """Where the sample keys are."""
        return folder / f"prob_diff{self.suffix}.keys.json"


def write_pair(
    folder: Path, name: PairName, diff: FloatArray, mask: BoolArray, keys: Sequence[str] | None = None
) -> PairName:
    """Write a pair of files; an existing pair is never overwritten, the next free attempt is taken.

    Args:
        folder: made where it does not exist.
        name: which comparison it is.
        diff: float32 ``[B, R]``.
        mask: bool ``[B, R]``.
        keys: ``B`` sample keys, written beside it.

    Returns:
        The name that was taken.

    Raises:
        OSError: the folder cannot be written to; no half-written file is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    attempts = (replace(name, attempt=n) for n in itertools.count(name.attempt))
    free = next(n for n in attempts if not n.diff_path(folder).exists() and not n.mask_path(folder).exists())
    # The differences come last: a reader that finds them finds the rest.
    if keys is not None:
        with atomic_file(free.keys_path(folder)) as file:
            file.write(json.dumps({"version": 1, "step": free.step, "keys": list(keys)}).encode())
    for path, array in ((free.mask_path(folder), mask), (free.diff_path(folder), diff)):
        with atomic_file(path) as file:
            np.save(file, array, allow_pickle=False)
    return free


def list_pairs(folder: Path) -> list[PairName]:
    """Names of the difference files in a folder, by step, sub-step and attempt.

    Args:
        folder: where the pairs are.

    Returns:
        All attempts, in order.

    Raises:
        InputError: the folder does not exist or holds no difference file.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: expected a folder of .npy pairs, got {'a file' if folder.exists() else 'nothing there'}."
        )
    found = [PairName.parse(path.name) for path in folder.glob("prob_diff*.npy")]
    names = sorted(name for name in found if name is not None)
    if not names:
        raise InputError(f"{folder}: expected prob_diff_step_*.npy files, got none. Is it the probe's save_dir?")
    return names


def open_pair(folder: Path, name: PairName) -> tuple[NDArray[Any], NDArray[Any]]:
    """Map a pair of files into memory without reading it.

    Args:
        folder: where the pair is.
        name: which pair.

    Returns:
        Differences (a float dtype) and mask (bool, integer, or float), read-only ``[B, R]``.

    Raises:
        InputError: the mask is missing, a file is no plain array of the right kind, or the shapes differ.
    """
    diff_path, mask_path = name.diff_path(folder), name.mask_path(folder)
    if not mask_path.exists():
        raise InputError(
            f"{diff_path.name}: expected its mask {mask_path.name} beside it, got none. It says which tokens are valid."
        )
    diff, mask = _map(diff_path, "f", "floats"), _map(mask_path, "biuf", "bools, or 0 and 1")
    if diff.shape != mask.shape:
        raise InputError(
            f"{diff_path.name} has shape {diff.shape}, {mask_path.name} has {mask.shape}: expected the same."
        )
    return diff, mask


def read_keys(folder: Path, name: PairName, rows: int) -> tuple[str, ...] | None:
    """Sample keys of a pair; None where there are none.

    Args:
        folder: where the pair is.
        name: which pair.
        rows: number of rows of the pair.

    Returns:
        One key a row.

    Raises:
        InputError: the file is no list of that many keys.
    """
    path = name.keys_path(folder)
    if not path.exists():
        return None
    try:
        keys = tuple(str(key) for key in json.loads(path.read_bytes())["keys"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path.name}: expected JSON with a list 'keys', got something else ({error}).") from error
    if len(keys) != rows:
        raise InputError(f"{path.name}: expected {rows} keys, one per row, got {len(keys)}.")
    return keys


def _map(path: Path, kinds: str, expected: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy takes headers for Python text: what is none fails anywhere in Python's parser
        raise InputError(f"{path.name}: expected a plain .npy array, got an unreadable file ({error}).") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in kinds:
        got = f"{getattr(array, 'dtype', 'an archive')} of shape {getattr(array, 'shape', '?')}"
        raise InputError(f"{path.name}: expected {expected} of shape [B, R], got {got}.")
    return array


__all__ = ["PairName", "list_pairs", "open_pair", "read_keys", "write_pair"]
