"""Time and peak memory of token log-probs: logparity and its peers. ``python -m benchmarks.log_probs``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import CASES, Case, Inputs, Mode, make_inputs, true_log_probs
from benchmarks.contenders import CONTENDERS, Contender, Scorer, perform
from benchmarks.measure import MIB, Clock, Timing, bare_matmul, bare_read, interleaved

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "log_probs.json"
TRUTH_ROWS = 32
TIMED_CASES = ("logits", "hidden")
"""The published case is about memory only; its time says nothing that the larger one does not."""

Row = dict[str, Any]


def measure_memory(case: Case, mode: Mode, index: int) -> Row:
    """Run one contender in a fresh process; on failure the last line of its error is the result."""
    # Small allocations are kept off the heap, so that what is freed leaves the process and the peak is what is held.
    environment = dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536", OMP_NUM_THREADS="1")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory_worker", case.name, mode.name, str(index)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"failed": lines[-1].strip() if lines else f"exit status {done.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _load(contender: Contender, row: Row) -> Scorer | None:
    try:
        return contender.load()
    except Exception as error:  # whatever a peer raises is its result
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
        return None


def _restorer(inputs: Inputs) -> Callable[[str], object]:
    """A function that lays the logits anew after a contender that wrote its gradient over them."""
    if inputs.logits is None:
        return lambda _name: None
    logits = inputs.logits.detach()
    pristine = logits.clone()
    return lambda name: logits.copy_(pristine) if CONTENDERS[int(name)].overwrites_logits else None


def _yardstick(inputs: Inputs) -> Callable[[], object]:
    if inputs.logits is not None:
        return bare_read(inputs.logits)
    assert inputs.hidden is not None
    assert inputs.weight is not None
    return bare_matmul(inputs.hidden, inputs.weight)


def time_case(case: Case, mode: Mode, rows: dict[int, Row], repeats: int, clock: Clock) -> None:
    """Time the contenders of one case and mode that work, in turn, and note their error against float64."""
    inputs = make_inputs(case)
    truth = true_log_probs(inputs, TRUTH_ROWS)
    restore = _restorer(inputs)
    calls: dict[str, Callable[[], object]] = {}
    for index, row in rows.items():
        scorer = None if "failed" in row else _load(CONTENDERS[index], row)
        if scorer is None:
            continue
        log_probs = perform(scorer, inputs, mode)[0]  # warms up, and shows the accuracy
        row["max_error"] = float((log_probs[:TRUTH_ROWS].double() - truth).abs().max())
        calls[str(index)] = partial(perform, scorer, inputs, mode)
        restore(str(index))
    for name, timing in interleaved(calls, _yardstick(inputs), repeats, restore, clock).items():
        rows[int(name)].update(_timing_row(timing))


def _timing_row(timing: Timing) -> Row:
    ratios = timing.ratios
    return {
        "seconds": timing.seconds,
        "yardstick_seconds": timing.yardstick,
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def measure_memories(cases: list[Case]) -> dict[tuple[str, Mode, int], Row]:
    """Peak memory of everything, two processes at a time: unlike time, memory does not mind company."""
    jobs = [
        (case, mode, index)
        for case in cases
        for mode in case.modes
        for index, contender in enumerate(CONTENDERS)
        if contender.fits(case, mode)
    ]
    with ThreadPoolExecutor(2) as pool:
        rows = pool.map(lambda job: measure_memory(*job), jobs)
        return {(case.name, mode, index): row for (case, mode, index), row in zip(jobs, rows, strict=True)}


def measure_all(repeats: int, names: tuple[str, ...], clock: Clock) -> list[Row]:
    """All cases, modes and contenders; memory first, since that finds out what runs at all."""
    cases, results = [CASES[name] for name in names], []
    memories = measure_memories(cases)
    for case, mode in [(each, mode) for each in cases for mode in each.modes]:
        rows = {index: row for (name, of, index), row in memories.items() if (name, of) == (case.name, mode)}
        if case.name in TIMED_CASES:
            time_case(case, mode, rows, repeats, clock)
        for index, row in rows.items():
            contender = CONTENDERS[index]
            head = {"case": case.name, "mode": mode.value, "contender": contender.name, "origin": contender.origin}
            results.append(head | row)
            _say(head | row)
    return results


def _say(row: Row) -> None:
    memory = f"{row['peak_bytes'] / MIB:8.1f} MiB" if "peak_bytes" in row else row.get("failed", "")
    ratio = f"{row['ratio_median']:7.2f}x" if "ratio_median" in row else " " * 8
    print(f"{row['case']:10} {row['mode']:42} {ratio} {memory}  {row['contender']}", flush=True)


def machine() -> Row:
    """What the numbers were measured on."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "cpu": model,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def main() -> None:
    """Measure, write the JSON, and draw the table and the plots from it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats of each contender")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file; others than the default draw nothing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", type=Clock, default=Clock.WALL, choices=list(Clock), help="cpu: where load is high")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    start, host = time.perf_counter(), machine() | {"clock": arguments.clock.value}
    rows = measure_all(arguments.repeats, tuple(arguments.cases), arguments.clock)
    host["minutes"] = round((time.perf_counter() - start) / 60, 1)
    write_results(arguments.out, arguments.cases, rows, host)
    if arguments.out == RESULTS:
        from benchmarks.render import render

        render(RESULTS)


def write_results(path: Path, names: list[str], rows: list[Row], host: Row) -> None:
    """Replace the results of the cases that were measured; others stay, each with the machine it was measured on."""
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        case = CASES[name]
        shape = {"tokens": case.tokens, "vocab": case.vocab, "hidden": case.hidden}
        results[name] = {"shape": shape, "machine": host, "rows": [row for row in rows if row["case"] == name]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
