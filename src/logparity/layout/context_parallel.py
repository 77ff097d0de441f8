"""Context parallelism: which tokens of a packed row lie on which rank, and the way back.

Rows and targets are indexed on the whole row before it is split, so the next-token shift never meets a chunk border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from logparity.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ContextLayout(str, Enum):
    """How tokens are shared out over ``cp`` ranks."""

    ZIGZAG = "zigzag"
    """Each sequence in ``2 * cp`` chunks; rank ``r`` owns chunks ``r`` and ``2 * cp - 1 - r``: equal causal work."""
    CONTIGUOUS = "contiguous"
    """The whole row in ``cp`` equal pieces; a rank may own no response token at all."""


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """The split of one packed row ``[T]``.

    Args:
        cu_seqlens: ``B + 1`` starts of the sequences, the last one ``T``.
        size: number of ranks, ``cp``.
        layout: zigzag or contiguous.

    Raises:
        InputError: a length does not divide into the chunks.
    """

    cu_seqlens: tuple[int, ...]
    size: int
    layout: ContextLayout = ContextLayout.ZIGZAG

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", ContextLayout(self.layout))
        if self.size < 1:
            raise InputError(f"size: expected at least one context-parallel rank, got {self.size}.")
        if self.layout is ContextLayout.CONTIGUOUS:
            _require_multiple("the packed row", self.cu_seqlens[-1], self.size)
            return
        for index, (start, stop) in enumerate(self._extents()):
            _require_multiple(f"sequence {index}", stop - start, 2 * self.size)

    @property
    def total(self) -> int:
        """``T``."""
        return self.cu_seqlens[-1]

    def owned(self, rank: int) -> Tensor:
        """Global token indices on a rank, in its local order: int64 ``[T / cp]``."""
        if not 0 <= rank < self.size:
            raise InputError(f"rank: expected 0 to {self.size - 1}, got {rank}.")
        if self.layout is ContextLayout.CONTIGUOUS:
            piece = self.total // self.size
            return torch.arange(rank * piece, (rank + 1) * piece)
        parts = [torch.zeros(0, dtype=torch.int64)]
        for start, stop in self._extents():
            chunk = (stop - start) // (2 * self.size)
            firsts = (start + rank * chunk, start + (2 * self.size - 1 - rank) * chunk)
            parts.extend(torch.arange(first, first + chunk) for first in firsts)
        return torch.cat(parts)

    def split(self, values: Tensor, rank: int, *, dim: int = 0) -> Tensor:
        """A rank's part of a tensor whose dimension ``dim`` is the row ``T``, with gradient."""
        self._require(values, dim, self.total)
        return values.index_select(dim, self.owned(rank).to(values.device))

    def merge(self, parts: Sequence[Tensor], *, dim: int = 0) -> Tensor:
        """The whole from every rank's part, in rank order; the inverse of `split`, with gradient."""
        if len(parts) != self.size:
            raise InputError(f"parts: expected {self.size}, one per rank, got {len(parts)}.")
        for part in parts:
            self._require(part, dim, self.total // self.size)
        order = torch.cat([self.owned(rank) for rank in range(self.size)])
        return torch.cat(list(parts), dim).index_select(dim, torch.argsort(order).to(parts[0].device))

    def local_rows(self, rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """Which response tokens a rank scores, and in which of its local rows.

        Args:
            rows: int64 ``[N]``: global rows that predict the response tokens.
            rank: which rank.

        Returns:
            ``picked`` int64 ``[n]``, ascending indices into the ``N`` tokens, and ``local`` int64 ``[n]``, rows
            of the rank's own logits ``[T / cp, V]``. Both may be empty.
        """
        where = torch.full((self.total,), -1, dtype=torch.int64)
        owned = self.owned(rank)
        where[owned] = torch.arange(owned.numel())
        local = where.to(rows.device)[rows]
        picked = (local >= 0).nonzero()[:, 0]
        return picked, local[picked]

    def gather(self, local: Tensor, rows: Tensor, group: ProcessGroup) -> Tensor:
        """All response values on every rank, from each rank's own: one collective, without gradient.

        Args:
            local: float ``[n]``: values of the tokens that `local_rows` picked for this rank; may be empty.
            rows: int64 ``[N]``: global rows, the same on every rank.
            group: the context-parallel group, of ``size`` ranks.

        Returns:
            ``[N]`` in the order of the response tokens.

        Raises:
            InputError: the group has another size, or the number of values is not this rank's.
        """
        if group.size() != self.size:
            raise InputError(f"group: expected {self.size} ranks, got {group.size()}.")
        picks = [self.local_rows(rows, rank)[0] for rank in range(self.size)]
        if local.shape != picks[group.rank()].shape:
            raise InputError(f"local: expected {picks[group.rank()].numel()} values, got shape {tuple(local.shape)}.")
        width = max(pick.numel() for pick in picks)
        sent = local.new_zeros(width)
        sent[: local.numel()] = local.detach()
        received = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(received, sent, group=group)
        whole = local.new_zeros(rows.numel())
        for pick, part in zip(picks, received, strict=True):
            whole[pick] = part[: pick.numel()]
        return whole

    def _extents(self) -> list[tuple[int, int]]:
        return list(zip(self.cu_seqlens[:-1], self.cu_seqlens[1:], strict=True))

    @staticmethod
    def _require(values: Tensor, dim: int, expected: int) -> None:
        if values.shape[dim] != expected:
            raise InputError(f"dimension {dim}: expected {expected} tokens, got shape {tuple(values.shape)}.")


def _require_multiple(what: str, length: int, multiple: int) -> None:
    if length % multiple:
        raise InputError(
            f"length of {what}: expected a multiple of {multiple} to share it out evenly, got {length}. Pad to "
            f"{-(-length // multiple) * multiple}, e.g. with pack_sequences(multiple={multiple})."
        )
