"""What a call asks for, checked and flattened: one record that every implementation reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import torch
from torch import Tensor

from logparity.errors import InputError, SupportError
from logparity.ops import checks
from logparity.ops.distribution import Distribution
from logparity.ops.support import Support, SupportEntries, check_support

ChunkSize = int | Literal["auto"]


class Entropy(str, Enum):
    """Whether the entropy is computed, and whether a gradient flows through it."""

    NONE = "none"
    VALUE = "value"
    GRAD = "grad"


@dataclass(frozen=True, slots=True)
class Scoring:
    """``N`` targets to score, and how.

    Args:
        targets: int64 ``[N]``, global ids.
        shape: shape of the outputs.
        distribution: softcap, scale, temperature.
        entropy: what is asked of the entropy.
        columns: columns of the whole vocabulary that count; those from here on are padding.
        ignore_index: target id that asks for nothing.
        rows: int64 ``[N]``, the row of logits of each target; None for target ``i`` on row ``i``.
        support: the sampler's supports; None for none.
        chunk_size: upper bound on rows in full precision; None for automatic.
        validate: whether values were checked, and remote failures may be read even if that waits for the device.
    """

    targets: Tensor
    shape: torch.Size
    distribution: Distribution
    entropy: Entropy
    columns: int
    ignore_index: int
    rows: Tensor | None
    support: SupportEntries | None
    chunk_size: int | None
    validate: bool

    def __len__(self) -> int:
        """Number of targets ``N``."""
        return self.targets.numel()

    def row_index(self) -> Tensor:
        """The row of logits of each target, int64 ``[N]``."""
        return torch.arange(len(self), device=self.targets.device) if self.rows is None else self.rows

    def select(self, positions: Tensor) -> Scoring:
        """The scoring of some of the targets (int64 positions); outputs become flat."""
        temperature = self.distribution.temperature
        if isinstance(temperature, Tensor):
            temperature = temperature[positions]
        return replace(
            self,
            targets=self.targets[positions],
            shape=torch.Size([len(positions)]),
            distribution=replace(self.distribution, temperature=temperature),
            rows=self.row_index()[positions],
            support=None if self.support is None else self.support.select(positions.cpu()),
        )


def scoring(
    targets: Tensor,
    *,
    leading: torch.Size,
    device: torch.device,
    columns: int,
    temperature: float | Tensor = 1.0,
    entropy: str = "none",
    support: Support | None = None,
    valid_vocab_size: int | None = None,
    rows: Tensor | Sequence[int] | None = None,
    ignore_index: int = -100,
    logit_softcap: float | None = None,
    logit_scale: float | None = None,
    chunk_size: ChunkSize = "auto",
    validate: bool | None = None,
) -> Scoring:
    """Check a call's options and flatten them.

    Args:
        targets: int64, in the shape ``leading``, or ``[N]`` where ``rows`` is given.
        leading: axes of the logits (or hidden states) before the last.
        device: where they are.
        columns: columns of the whole vocabulary, all shards together.
        temperature: see `logparity.ops.token_log_probs`, as all that follow.
        entropy: see there.
        support: see there.
        valid_vocab_size: see there.
        rows: see there.
        ignore_index: see there.
        logit_softcap: see there.
        logit_scale: see there.
        chunk_size: see there.
        validate: see there.

    Returns:
        The checked record.

    Raises:
        InputError: an option is wrong; says which, what was expected, and the fix.
        SupportError: the support is malformed or lacks a target.
    """
    checked = device.type == "cpu" if checks.flag("validate", validate) is None else bool(validate)
    ignore_index = checks.ignored_id(ignore_index)
    valid = checks.valid_columns(valid_vocab_size, columns)
    targets = checks.target_tensor(targets, device)
    index = checks.row_index(rows, leading, device, check_values=checked)
    checks.target_shape(targets, leading, index)
    if support is not None and not isinstance(support, Support):
        raise SupportError(
            f"support: expected a Support, got {checks.kind_of(support)}. "
            "Build it with Support.from_lists([[...], ...])."
        )
    if support is not None and len(support) != targets.numel():
        raise InputError(
            f"support: expected one row per target ({targets.numel()}), got {len(support)} rows. "
            "Give every target its set of ids."
        )
    flat = targets.reshape(-1)
    if checked:
        checks.target_values(flat, valid, ignore_index)
        if support is not None:
            check_support(support, flat, valid, ignore_index)
    return Scoring(
        targets=flat,
        shape=targets.shape,
        distribution=Distribution(
            softcap=checks.positive("logit_softcap", logit_softcap),
            scale=checks.positive("logit_scale", logit_scale) or 1.0,
            temperature=checks.temperature(temperature, targets, check_values=checked),
        ),
        entropy=_entropy(entropy),
        columns=valid,
        ignore_index=ignore_index,
        rows=index,
        support=None if support is None else SupportEntries.of(_on(support, device)),
        chunk_size=checks.chunk_rows(chunk_size),
        validate=checked,
    )


def _entropy(mode: str) -> Entropy:
    try:
        return Entropy(mode)
    except ValueError:
        raise InputError(f"entropy: expected 'none', 'value', or 'grad', got {mode!r}.") from None


def _on(support: Support, device: torch.device) -> Support:
    if support.ids.device != device:
        raise InputError(
            f"support ids: expected on {device}, the logits' device, got {support.ids.device}. "
            "Move them (the offsets stay on the CPU)."
        )
    return support
