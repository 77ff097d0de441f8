"""Per-token values of responses in the three shapes frameworks keep them in: flat, list, and padded matrix.

Losses read them flat: ``[N]``, the responses one after another, ``N`` the sum of their lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from logparity.errors import InputError


@dataclass(frozen=True, slots=True)
class Responses:
    """``B`` responses of known lengths, laid one after another.

    Args:
        lengths: ``R_b`` of each response, >= 0; an empty response takes no room in the flat layout.

    Raises:
        InputError: a length is negative.
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        for index, length in enumerate(self.lengths):
            if length < 0:
                raise InputError(f"length of response {index}: expected >= 0, got {length}.")

    @property
    def total(self) -> int:
        """``N``."""
        return sum(self.lengths)

    @property
    def width(self) -> int:
        """Longest response; 0 without any."""
        return max(self.lengths, default=0)

    def sequence_ids(self, device: torch.device | str = "cpu") -> Tensor:
        """int64 ``[N]``: the response each token belongs to."""
        return torch.repeat_interleave(
            torch.arange(len(self.lengths)), torch.tensor(self.lengths, dtype=torch.int64)
        ).to(device)

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """int64 ``[N]``: index of each token in its response."""
        parts = [torch.arange(length) for length in self.lengths]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *parts]).to(device)

    def from_list(self, values: Sequence[Tensor]) -> Tensor:
        """Flat ``[N]`` from ``B`` tensors ``[R_b]``, with gradient.

        Args:
            values: one 1-D tensor per response.

        Returns:
            ``[N]``.

        Raises:
            InputError: their number or a length differs.
        """
        if len(values) != len(self.lengths):
            raise InputError(f"values: expected {len(self.lengths)} tensors, one per response, got {len(values)}.")
        for index, (value, length) in enumerate(zip(values, self.lengths, strict=True)):
            if value.shape != (length,):
                raise InputError(f"values[{index}]: expected shape ({length},), got {tuple(value.shape)}.")
        return torch.cat(list(values)) if values else torch.zeros(0)

    def to_list(self, flat: Tensor) -> list[Tensor]:
        """``B`` tensors ``[R_b]``, views of flat ``[N]``."""
        self._require(flat)
        return list(torch.split(flat, list(self.lengths))) if self.lengths else []

    def from_padded(self, matrix: Tensor) -> Tensor:
        """Flat ``[N]`` from a matrix ``[B, R]`` padded on the right, with gradient; padding may hold anything.

        Args:
            matrix: ``[B, R]`` with ``R`` at least the longest response.

        Returns:
            ``[N]``.

        Raises:
            InputError: the matrix has another number of rows or is too narrow.
        """
        if matrix.ndim != 2 or matrix.shape[0] != len(self.lengths) or matrix.shape[1] < self.width:
            raise InputError(
                f"matrix: expected {len(self.lengths)} rows and at least {self.width} columns, got "
                f"{tuple(matrix.shape)}."
            )
        return matrix[self.sequence_ids(matrix.device), self.positions(matrix.device)]

    def to_padded(self, flat: Tensor, *, width: int | None = None, fill: float = 0.0) -> Tensor:
        """Matrix ``[B, width]`` padded on the right, with gradient.

        Args:
            flat: ``[N]``.
            width: columns; None takes the longest response.
            fill: value of the padding.

        Returns:
            ``[B, width]``.

        Raises:
            InputError: the number of values differs, or the width is less than the longest response.
        """
        self._require(flat)
        columns = self.width if width is None else width
        if columns < self.width:
            raise InputError(f"width: expected at least {self.width}, the longest response, got {columns}.")
        matrix = flat.new_full((len(self.lengths), columns), fill)
        return matrix.index_put((self.sequence_ids(flat.device), self.positions(flat.device)), flat)

    def _require(self, flat: Tensor) -> None:
        if flat.shape != (self.total,):
            raise InputError(
                f"flat: expected {self.total} values, one per response token, got shape {tuple(flat.shape)}."
            )
