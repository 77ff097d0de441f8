"""The one collective of a call: gather equal payloads, and with them any rank's error.

A lone ``raise`` would leave the other ranks waiting in the collective. So a rank that fails still takes part: its
error rides in a header in front of its payload, and every rank raises it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from logparity.errors import InputError, LogparityError, ShardError, SupportError
from logparity.parallel.vocab import ShardLayout

_HEADER_BYTES = 512
_KINDS: tuple[type[LogparityError], ...] = (InputError, SupportError, ShardError)


def exchange(
    payload: Tensor, layout: ShardLayout, *, failure: LogparityError | None = None, read_failures: bool = True
) -> Sequence[Tensor]:
    """Gather every rank's payload (equal shape and dtype) in one collective; raise where a rank failed.

    Args:
        payload: what this rank contributes; contents are ignored where ``failure`` is given.
        layout: whose group is gathered over.
        failure: this rank's error, raised here and on every rank that reads headers.
        read_failures: whether to look at the headers where that waits for a device. Without it (CUDA, unvalidated) a
            failed rank's payload arrives as NaN, so that its error shows up in the results instead.

    Returns:
        The payloads in rank order; for a single process its own.

    Raises:
        LogparityError: ``failure``, or the first failed rank's error with its rank.
    """
    if layout.alone:
        if failure is not None:
            raise failure
        return (payload,)
    sent = torch.cat([_header(failure, payload.device), _body(payload, failure)])
    received = sent.new_empty(len(layout.bounds), sent.numel())
    dist.all_gather_into_tensor(received.view(-1), sent, group=layout.group)
    if failure is not None:
        raise failure
    if read_failures or payload.device.type == "cpu":
        _raise_first(received[:, :_HEADER_BYTES].cpu())
    bodies = received[:, _HEADER_BYTES:]
    return tuple(body.view(payload.dtype).view(payload.shape) for body in bodies.unbind(0))


def _body(payload: Tensor, failure: LogparityError | None) -> Tensor:
    if failure is not None and payload.is_floating_point():
        payload = torch.full_like(payload, float("nan"))
    return payload.contiguous().view(-1).view(torch.uint8)


def _header(failure: LogparityError | None, device: torch.device) -> Tensor:
    if failure is None:
        return torch.zeros(_HEADER_BYTES, dtype=torch.uint8, device=device)
    kind = next((i for i, known in enumerate(_KINDS) if type(failure) is known), 0)
    text = bytes([kind + 1]) + str(failure).encode()[: _HEADER_BYTES - 2]
    return torch.tensor(list(text.ljust(_HEADER_BYTES, b"\0")), dtype=torch.uint8, device=device)


def _raise_first(headers: Tensor) -> None:
    for rank in headers[:, 0].nonzero().flatten().tolist():
        raw = bytes(headers[rank].tolist()).rstrip(b"\0")
        raise _KINDS[raw[0] - 1](f"on rank {rank} of the vocabulary's group: {raw[1:].decode(errors='ignore')}")
