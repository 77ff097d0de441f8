"""How weights of a Hugging Face folder become a tensor-parallel rank's shard of a Megatron parameter, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Read = Callable[[str], Tensor]
"""Gives the weight of a Hugging Face name."""


class Rule(Protocol):
    """One Megatron parameter and the Hugging Face weights it is made of."""

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names."""
        ...

    def shard(self, read: Read, rank: int, size: int) -> Tensor:
        """The shard of a tensor-parallel rank."""
        ...

    def join(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """The Hugging Face weights from all shards, in rank order."""
        ...


@dataclass(frozen=True, slots=True)
class Replicated:
    """A weight that every rank holds whole: norms, routers, value heads."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names."""
        return (self.name,)

    def shard(self, read: Read, rank: int, size: int) -> Tensor:  # noqa: ARG002
        """The weight."""
        return read(self.name)

    def join(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """The weight as the first rank holds it."""
        return {self.name: shards[0]}


@dataclass(frozen=True, slots=True)
class Split:
    """A matrix cut along one axis: 0 for a column-parallel layer (its outputs), 1 for a row-parallel one (inputs)."""

    name: str
    dim: int

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names."""
        return (self.name,)

    def shard(self, read: Read, rank: int, size: int) -> Tensor:
        """The rank's piece."""
        return read(self.name).chunk(size, self.dim)[rank]

    def join(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """The pieces after each other."""
        return {self.name: torch.cat(list(shards), self.dim)}


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """An embedding or LM head: rows of zeros are appended so that every rank gets the same number."""

    name: str
    rows: int
    padded: int

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names."""
        return (self.name,)

    def shard(self, read: Read, rank: int, size: int) -> Tensor:
        """The rank's rows."""
        whole = read(self.name)
        padding = whole.new_zeros(self.padded - self.rows, *whole.shape[1:])
        return torch.cat((whole, padding)).chunk(size)[rank]

    def join(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """All rows without the padding."""
        return {self.name: torch.cat(list(shards))[: self.rows]}


@dataclass(frozen=True, slots=True)
class GatedPair:
    """Gate and up projection of a feed-forward layer, one matrix in Megatron: each rank holds a piece of both."""

    gate: str
    up: str

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names."""
        return (self.gate, self.up)

    def shard(self, read: Read, rank: int, size: int) -> Tensor:
        """The rank's piece of the gate over its piece of the up projection."""
        return torch.cat([read(name).chunk(size)[rank] for name in self.names])

    def join(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """Both, each from its pieces."""
        halves = [shard.chunk(2) for shard in shards]
        return {name: torch.cat([half[i] for half in halves]) for i, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True)
class GroupedHeads:
    """Query, key, and value projection, one matrix (or bias) in Megatron.

    Its rows go group by group: the query heads of a group, its key head, its value head. A rank holds whole groups.

    Args:
        query: name.
        key: name.
        value: name.
        groups: key heads.
        head_size: rows of a head.
    """

    query: str
    key: str
    value: str
    groups: int
    head_size: int

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names."""
        return (self.query, self.key, self.value)

    def shard(self, read: Read, rank: int, size: int) -> Tensor:
        """The rank's groups."""
        parts = [self._by_group(read(name)) for name in self.names]
        whole = torch.cat(parts, dim=1)
        return whole.chunk(size)[rank].flatten(0, 1)

    def join(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """Query, key, and value rows taken apart again."""
        whole = self._by_group(torch.cat(list(shards)))
        rows = whole.shape[1] - 2 * self.head_size
        parts = torch.split(whole, [rows, self.head_size, self.head_size], dim=1)
        return {name: part.flatten(0, 1) for name, part in zip(self.names, parts, strict=True)}

    def _by_group(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.groups, -1, *rows.shape[1:])


__all__ = ["GatedPair", "GroupedHeads", "PaddedRows", "Read", "Replicated", "Rule", "Split"]
