"""Throughput, memory, blocking time, and disk of the probe at production size. ``python -m benchmarks.probe``.

One process on one core, timed by CPU time, so that a busy machine costs little; the load is written down all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from logparity.probe import Probe, ProbeConfig, StoreConfig, open_run
from logparity.probe.metrics.unit import UnitMetrics
from logparity.probe.metrics.walk import Walker
from logparity.probe.snapshot.batch import CapturedBatch
from logparity.probe.store.schemas import Tier

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "probe.json"
DOCS = ROOT / "docs" / "probe.md"
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"
CALL_TOKENS = 1 << 21


def make_batch(seed: int, rows: int, width: int) -> CapturedBatch:
    """Packed rows of about ``width`` tokens, as two bf16 engines differ."""
    rng = np.random.default_rng(seed)
    lengths = np.full(rows, width, np.int64)
    lengths[1::2] += width // 3
    lengths[::2] -= width // 3
    count = int(lengths.sum())
    rollout = -rng.exponential(0.5, count).astype(np.float32)
    train = -np.abs(rollout + rng.normal(0, 0.02, count)).astype(np.float32)
    labels = ("math", "code", "chat")
    return CapturedBatch(
        rollout=rollout,
        train=train,
        mask=np.ones(count, np.bool_),
        lengths=lengths,
        keys=tuple(f"{seed}.{row}" for row in range(rows)),
        layout="packed [N]",
        lag=rng.integers(0, 4, rows),
        groups={
            "env": tuple(labels[row % 3] for row in range(rows)),
            "data_source": tuple(f"set{row % 7}" for row in range(rows)),
            "engine": ("vllm",) * rows,
        },
    )


def throughput(tokens: int, *, groups: bool, width: int) -> dict[str, float]:
    """Tokens a second of CPU time, best and median over the calls, and how much memory grew after the first."""
    batches = [make_batch(seed, CALL_TOKENS // width, width) for seed in range(3)]
    walker, unit = Walker(groups=groups), UnitMetrics()
    walker.add(unit, batches[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rates, done, begin = [], 0, time.process_time()
    while done < tokens:
        batch = batches[len(rates) % len(batches)]
        start = time.process_time()
        walker.add(unit, batch)
        rates.append(len(batch.mask) / (time.process_time() - start))
        done += len(batch.mask)
    total = done / (time.process_time() - begin)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"tokens": done, "mean": total, "median": statistics.median(rates), "best": max(rates), "grown_kib": grown}


def blocking(calls: int) -> dict[str, float]:
    """Milliseconds that `observe` takes for 2M tokens with ids and entropy in numpy: of the clock, of the CPU."""
    shape = (256, CALL_TOKENS // 256)
    rng = np.random.default_rng(0)
    rollout = -rng.exponential(0.5, shape).astype(np.float32)
    arguments = {
        "rollout_log_probs": rollout,
        "old_log_probs": rollout - np.float32(0.01),
        "response_mask": np.ones(shape, np.int64),
        "token_ids": np.ones(shape, np.int64),
        "entropy": -rollout,
    }
    times, busy = [], []
    probe = Probe(ProbeConfig(enabled=True, token_max_print=0))
    for step in range(calls):
        start, used = time.perf_counter(), time.thread_time()
        probe.observe(step=step, **arguments)
        busy.append((time.thread_time() - used) * 1e3)
        times.append((time.perf_counter() - start) * 1e3)
        probe.flush()
    probe.close()
    return {
        "median_ms": statistics.median(times),
        "worst_ms": max(times),
        "cpu_median_ms": statistics.median(busy),
        "cpu_worst_ms": max(busy),
    }


def disk() -> dict[str, float]:
    """Bytes of each tier for one step of 2M tokens."""
    batch = make_batch(0, 256, CALL_TOKENS // 256)
    with tempfile.TemporaryDirectory() as folder:
        store = StoreConfig(tokens_every=1)
        probe = Probe(ProbeConfig(enabled=True, strict=True, background=False, run_dir=Path(folder), store=store))
        probe.observe(
            step=0,
            rollout_log_probs=batch.rollout,
            old_log_probs=batch.train,
            lengths=batch.lengths,
            keys=batch.keys,
            token_ids=np.ones(len(batch.mask), np.int32),
            groups=batch.groups,
        )
        probe.close()
        files = open_run(folder).units[0].files
        sizes: dict[str, float] = {tier.value: files[tier].stat().st_size for tier in Tier}
    sizes["bytes_per_token"] = sizes["tokens"] / len(batch.mask)
    return sizes


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rows = [
        (f"aggregates and two histograms, {name} tokens a row", f"{r['mean'] / 1e6:.1f} million tokens/s")
        for name, r in result["aggregates"].items()
    ]
    rows += [
        (f"every grouping, {name} tokens a row", f"{r['mean'] / 1e6:.1f} million tokens/s")
        for name, r in result["groups"].items()
    ]
    grown = max(r["grown_kib"] for kind in ("aggregates", "groups") for r in result[kind].values())
    block, sizes = result["blocking"], result["disk"]
    waited = f"{block['median_ms']:.0f} ms ({block['worst_ms']:.0f} ms)"
    busy = f"{block['cpu_median_ms']:.0f} ms ({block['cpu_worst_ms']:.0f} ms)"
    rows += [
        ("growth of memory after the first call", f"{grown / 1024:.1f} MiB"),
        ("`observe` of 2.1 million tokens, wall time: median (worst)", waited),
        ("the same, CPU time: median (worst; the first call)", busy),
        ("summary of a step (T0)", f"{sizes['summary'] / 1e3:.0f} kB"),
        ("worst tokens of a step (T1)", f"{sizes['worst'] / 1e3:.0f} kB"),
        ("every token (T3), without ids", f"{sizes['bytes_per_token']:.2f} bytes per token"),
    ]
    lines = ["| what | figure |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    machine = (
        f"{result['cpu']}, {result['cores']} cores, load {result['load']:.1f}; {result['tokens']:.0e} tokens a line."
    )
    return "\n".join([*lines, "", f"Measured by `python -m benchmarks.probe` on {machine}", ""])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=1e8, help="tokens per line of the table")
    arguments = parser.parse_args()
    tokens = int(arguments.tokens)
    load = os.getloadavg()[0]
    widths = {"8,192": 8192, "512": 512}
    result: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": load,
        "tokens": float(tokens),
        "numpy": np.__version__,
        "aggregates": {name: throughput(tokens, groups=False, width=width) for name, width in widths.items()},
        "groups": {name: throughput(tokens, groups=True, width=width) for name, width in widths.items()},
        "blocking": blocking(7),
        "disk": disk(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = table(result)
    print(text)
    docs = DOCS.read_text(encoding="utf-8")
    head, rest = docs.split(BEGIN)
    DOCS.write_text(f"{head}{BEGIN}\n{text}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
