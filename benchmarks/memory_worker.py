"""Peak memory of one call in a fresh process: ``python -m benchmarks.memory_worker CASE MODE INDEX``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from benchmarks.cases import CASES, Case, Mode, make_inputs
from benchmarks.contenders import CONTENDERS, perform
from benchmarks.measure import peak_extra_bytes

WARM_UP = Case("warm-up", tokens=130, vocab=8200)
"""Loads kernels and thread pools, whose memory is no property of the contender; two chunks, two tiles."""


def main(case_name: str, mode_name: str, index: str) -> None:
    """Print the bytes as JSON."""
    case, mode, contender = CASES[case_name], Mode[mode_name], CONTENDERS[int(index)]
    scorer = contender.load()
    inputs = make_inputs(case)
    # A compiler specialises on shapes, and its own memory is not the contender's: let it see the real case first.
    warm_up = inputs if contender.compiled else make_inputs(replace(WARM_UP, hidden=min(case.hidden, 256)))
    perform(scorer, warm_up, mode)
    print(json.dumps({"peak_bytes": peak_extra_bytes(lambda: perform(scorer, inputs, mode))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
