"""Sampling supports: the ids that top-k, top-p, or min-p left a chance, one set per target, in CSR form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from logparity.errors import SupportError
from logparity.ops.checks import is_integers, kind_of


@dataclass(frozen=True, slots=True)
class Support:
    """One set of token ids per target: row ``i`` is ``ids[offsets[i]:offsets[i + 1]]``.

    Ids may come in any order; an id that is there twice counts once. Keep ``offsets`` on the CPU, also for logits on
    a GPU: their values are read by the host.

    Args:
        offsets: int64 ``[N + 1]``, from 0 up to the number of ids.
        ids: int64 ``[nnz]``, global token ids.

    Raises:
        SupportError: not 1-D integer tensors, or the offsets do not run from 0 up to the number of ids.
    """

    offsets: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        for name, values in (("offsets", self.offsets), ("ids", self.ids)):
            if not isinstance(values, Tensor) or values.dim() != 1 or not is_integers(values):
                got = f"{list(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else kind_of(values)
                raise SupportError(
                    f"support {name}: expected a 1-D int64 tensor, got {got}. "
                    "Build it with Support.from_lists([[...], ...])."
                )
        marks = self.offsets.tolist()
        rising = all(a <= b for a, b in pairwise(marks))
        if not marks or marks[0] != 0 or marks[-1] != self.ids.numel() or not rising:
            raise SupportError(
                f"support offsets: expected to run from 0 up to {self.ids.numel()} (the number of ids), got "
                f"{marks[:4]}{'...' if len(marks) > 4 else ''}. Row i is ids[offsets[i]:offsets[i + 1]]."
            )
        object.__setattr__(self, "offsets", self.offsets.to("cpu", torch.int64))
        object.__setattr__(self, "ids", self.ids.to(torch.int64))

    @classmethod
    def from_lists(cls, rows: Iterable[Sequence[int]], device: torch.device | str | None = None) -> Support:
        """Build a support from one sequence of ids per target."""
        try:
            sets = [list(row) for row in rows]
            ids = torch.tensor([token for row in sets for token in row], device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SupportError(
                f"support: expected one sequence of integer ids per target, got {kind_of(rows)} ({error}). "
                "Pass [[id, id, ..], ..]."
            ) from error
        lengths = torch.tensor([0, *(len(row) for row in sets)], dtype=torch.int64)
        return cls(offsets=lengths.cumsum(0), ids=ids if ids.numel() else ids.to(torch.int64))

    def __len__(self) -> int:
        """Number of rows."""
        return self.offsets.numel() - 1


@dataclass(frozen=True, slots=True)
class SupportEntries:
    """A support as flat entries, sorted by row and id; all tensors ``[nnz]`` on the logits' device.

    Args:
        offsets: int64 ``[N + 1]`` on the CPU.
        row: the target each entry belongs to.
        id: its global token id.
        repeated: whether the same id came before in the row; such entries count for nothing.
    """

    offsets: Tensor
    row: Tensor
    id: Tensor
    repeated: Tensor

    @classmethod
    def of(cls, support: Support) -> SupportEntries:
        """Sort a support and mark its repeated ids."""
        lengths = support.offsets.diff().to(support.ids.device)
        row = torch.repeat_interleave(
            torch.arange(len(support), device=support.ids.device), lengths, output_size=support.ids.numel()
        )
        by_id = support.ids.argsort(stable=True)
        order = by_id[row[by_id].argsort(stable=True)]
        row, token = row[order], support.ids[order]
        repeated = torch.zeros_like(token, dtype=torch.bool)
        repeated[1:] = (token[1:] == token[:-1]) & (row[1:] == row[:-1])
        return cls(offsets=support.offsets, row=row, id=token, repeated=repeated)

    def select(self, rows: Tensor) -> SupportEntries:
        """The entries of some rows (int64 on the CPU), renumbered."""
        lengths = self.offsets.diff()[rows]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = (self.offsets[:-1][rows] - offsets[:-1]).repeat_interleave(lengths)
        index = (torch.arange(int(offsets[-1])) + shift).to(self.id.device)
        row = torch.arange(len(rows)).repeat_interleave(lengths).to(self.id.device)
        return SupportEntries(offsets=offsets, row=row, id=self.id[index], repeated=self.repeated[index])

    def span(self, rows: slice) -> slice:
        """Where the entries of consecutive rows lie."""
        return slice(int(self.offsets[rows.start]), int(self.offsets[rows.stop]))


def check_support(support: Support, targets: Tensor, columns: int, ignore_index: int) -> None:
    """Check a support's values against the targets ``[N]`` that must lie in it.

    Raises:
        SupportError: an id outside ``[0, columns)``, an empty row, or a row without its target; names row and id.
    """
    rows = torch.repeat_interleave(torch.arange(len(support)), support.offsets.diff())
    ids, wanted = support.ids.cpu(), targets.cpu()
    outside = ((ids < 0) | (ids >= columns)).nonzero()
    if len(outside):
        at = int(outside[0])
        raise SupportError(
            f"support of row {int(rows[at])}: expected ids in [0, {columns}), got {int(ids[at])}. "
            "Ids are global; drop padded vocabulary ids."
        )
    holds = torch.zeros(len(support), dtype=torch.bool)
    holds[rows[ids == wanted[rows]]] = True
    missing = (~holds & (wanted != ignore_index)).nonzero()
    if len(missing):
        row = int(missing[0])
        count = int(support.offsets[row + 1] - support.offsets[row])
        if count == 0:
            raise SupportError(
                f"support of row {row}: expected at least one id, got none (target {int(wanted[row])}). "
                f"Give the sampler's ids, or leave the row out by rows= or ignore_index={ignore_index}."
            )
        raise SupportError(
            f"support of row {row}: expected its target {int(wanted[row])} among its {count} ids, got "
            f"{ids[rows == row][:8].tolist()}{'...' if count > 8 else ''}. The sampler's support and the response ids "
            "are out of step, usually by one position."
        )
