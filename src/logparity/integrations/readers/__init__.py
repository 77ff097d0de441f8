"""Token log-probs of both sides, read back from what trainers and engines leave on disk.

::

    for dump in read_dumps("dump.npz"):
        print(dump.step, dump.notes)
        pairs = dump.pairs()

Nothing in a file is ever executed: no pickles, no object arrays, and no allocation of more than the file can hold.
"""

from __future__ import annotations

from logparity.integrations.readers.dump import TokenDump
from logparity.integrations.readers.layouts import Layout
from logparity.integrations.readers.read import read_dumps
from logparity.integrations.readers.verl_log import LoggedStep, read_verl_log

__all__ = ["Layout", "LoggedStep", "TokenDump", "read_dumps", "read_verl_log"]
