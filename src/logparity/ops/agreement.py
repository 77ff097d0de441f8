"""What every rank of a vocabulary's group must have been asked for alike, in a few short words."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from logparity.ops.options import Scoring
from logparity.parallel.collectives import Exchange


def agree(exchange: Exchange, asked: Scoring, impl: str, dtype: torch.dtype) -> None:
    """Have the ranks compare what they were asked for, where looking at values does not wait for a device.

    Args:
        exchange: the collective that carries it.
        asked: what this rank was asked for; before ignored targets are left out.
        impl: the implementation chosen.
        dtype: of the logits or hidden states.
    """
    if not exchange.layout.alone and (asked.validate or asked.targets.device.type == "cpu"):
        exchange.agree(terms(asked, impl, dtype))


def terms(asked: Scoring, impl: str, dtype: torch.dtype) -> dict[str, str]:
    """Argument names and values; tensors as a number of entries and a checksum. Waits for the device."""
    how, temperature = asked.distribution, asked.distribution.temperature
    return {
        "impl": impl,
        "dtype": str(dtype),
        "entropy": asked.entropy.value,
        "support": "None" if asked.support is None else _summary(asked.support.id, "ids"),
        "valid_vocab_size": str(asked.columns),
        "ignore_index": str(asked.ignore_index),
        "logit_softcap": str(how.softcap),
        "logit_scale": str(how.scale),
        "temperature": _summary(temperature, "values") if isinstance(temperature, Tensor) else str(temperature),
        "targets": _summary(asked.targets, "ids"),
    }


def _summary(values: Tensor, what: str) -> str:
    checksum = zlib.crc32(values.detach().cpu().contiguous().numpy().tobytes())
    return f"{values.numel()} {what} (checksum {checksum:08x})"
