"""The one collective of a call: gather the ranks' payloads, and with them any rank's error.

A lone ``raise`` would leave the other ranks waiting. So a rank that fails, for whatever reason, still takes part: its
error rides in a notice of fixed size in front of its payload, and every rank raises it. The payload's size is fixed
before anything can fail, from what every rank knows alike; what a rank was asked for rides in its notice as well, so
that ranks that were asked for different things find out instead of mixing their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

import torch
from torch import Tensor

from logparity.parallel.groups import gather_flat
from logparity.parallel.notices import NOTICE_BYTES, check_notices, failure_notice, terms_notice
from logparity.parallel.vocab import ShardLayout

_ITEM = torch.float64.itemsize
_ROWS_AT_ONCE = 64


class Exchange:
    """One collective, used as ``with Exchange(...) as exchange: ... exchange(payload)``.

    An exception that leaves the block before the call is told to the other ranks, which wait in theirs.

    Args:
        layout: whose group gathers; nothing is sent for a single process.
        device: where the group communicates.
        capacity: bytes of payload to make room for; must be equal on every rank, failing ones included.
    """

    def __init__(self, layout: ShardLayout, device: torch.device | str = "cpu", capacity: int = 0) -> None:
        self.layout = layout
        self._capacity = -(-capacity // _ITEM) * _ITEM
        self._device = torch.device(device)
        self._terms: Mapping[str, str] | None = None
        self._spent = layout.alone

    def agree(self, terms: Mapping[str, str]) -> None:
        """Have the ranks compare what they were asked for, and look for errors, which waits for the device.

        Without it a failed rank's payload arrives as NaN, so that its error shows up in the results instead.
        """
        self._terms = terms

    def __call__(self, payload: Tensor) -> Sequence[Tensor]:
        """Gather every rank's payload of this shape and dtype.

        Args:
            payload: what this rank contributes.

        Returns:
            The payloads in rank order; for a single process its own.

        Raises:
            LogparityError: another rank failed: its error, with its rank.
            InputError: ranks were asked for different things.
        """
        if self.layout.alone:
            return (payload,)
        body = payload.detach().contiguous().view(-1).view(torch.uint8)
        sent = self._blank()
        sent[NOTICE_BYTES : NOTICE_BYTES + len(body)] = body
        if self._terms is not None:
            sent[:NOTICE_BYTES] = _on(terms_notice(self._terms), self._device)
        received = self._gather(sent)
        if self._terms is not None:
            check_notices([bytes(notice.tolist()) for notice in received[:, :NOTICE_BYTES].cpu()])
        bodies = received[:, NOTICE_BYTES : NOTICE_BYTES + len(body)].to(payload.device)
        return tuple(each.view(payload.dtype).view(payload.shape) for each in bodies)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not self._spent:
            sent = self._blank()
            sent[NOTICE_BYTES:].view(torch.float64).fill_(torch.nan)
            sent[:NOTICE_BYTES] = _on(failure_notice(error), self._device)
            with suppress(RuntimeError):  # a broken connection says less than the error that is on its way
                self._gather(sent)

    def _blank(self) -> Tensor:
        return torch.zeros(NOTICE_BYTES + self._capacity, dtype=torch.uint8, device=self._device)

    def _gather(self, sent: Tensor) -> Tensor:
        self._spent = True
        return gather_flat(sent, self.layout.group, len(self.layout.bounds))


def rows_with_room(rows: int) -> int:
    """Rows to make room for: ranks whose numbers differ by few can exchange still, and find out that they differ."""
    return -(-max(rows, 1) // _ROWS_AT_ONCE) * _ROWS_AT_ONCE


def _on(notice: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(notice), dtype=torch.uint8).to(device)
