"""Rotary embedding with the model folder's own frequencies, and positions of tokens in any order."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from logparity.actors.megatron.attention import PlannedPacking


class FolderRotary(RotaryEmbedding):  # type: ignore[misc]
    """Megatron-Core's rotary embedding, with frequencies handed in.

    Llama 3's scaling has four numbers, of which Megatron-Core takes one; so the frequencies are computed by
    Transformers from the folder's config.

    Args:
        inv_freq: float32 ``[d / 2]``.
        **settings: what the base class takes.
    """

    def __init__(self, inv_freq: Tensor, **settings: Any) -> None:
        super().__init__(**settings)
        self.inv_freq: Tensor = inv_freq.to(self.inv_freq.device)

    def get_rotary_seq_len(
        self,
        inference_context: Any,
        transformer: Any,
        transformer_input: Any,
        transformer_config: Any,
        packed_seq_params: PackedSeqParams | None = None,
        **unused: Any,
    ) -> int | Tensor:
        """Length to make angles for, or, where local tokens are not in Megatron's order, their positions.

        Args:
            inference_context: passed on, as what follows.
            transformer: passed on.
            transformer_input: passed on.
            transformer_config: passed on.
            packed_seq_params: may carry positions.
            **unused: passed on.

        Returns:
            What `forward` takes first.
        """
        if isinstance(packed_seq_params, PlannedPacking) and packed_seq_params.positions is not None:
            return packed_seq_params.positions
        length: int = super().get_rotary_seq_len(
            inference_context, transformer, transformer_input, transformer_config, packed_seq_params, **unused
        )
        return length

    def forward(
        self, max_seq_len: int | Tensor, offset: int = 0, packed_seq: bool = False, cp_group: Any = None
    ) -> Tensor:
        """Angles ``[s, 1, 1, d]`` of ``s`` positions.

        Args:
            max_seq_len: number of positions from 0, or the positions themselves.
            offset: first position.
            packed_seq: whether each sequence takes its share of the angles itself.
            cp_group: context-parallel group.

        Returns:
            float32 angles.
        """
        if not isinstance(max_seq_len, Tensor):
            angles: Tensor = super().forward(max_seq_len, offset, packed_seq, cp_group)
            return angles
        if self.inv_freq.device != max_seq_len.device:
            self.inv_freq = self.inv_freq.to(max_seq_len.device)
        half = torch.outer(max_seq_len.to(self.inv_freq.dtype), self.inv_freq)
        return torch.cat((half, half), dim=-1)[:, None, None, :]


__all__ = ["FolderRotary"]
