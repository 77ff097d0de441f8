"""``logparity plan``: what each way of computing token log-probs would take, and whether it fits."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from logparity.cli.gpus import gpu_mib
from logparity.errors import InputError
from logparity.ops.memory_plan import GIB, MIB, MemoryPlan
from logparity.ops.sizes import Dtype, Entropy, Problem
from logparity.ops.ways import plan_ways

_UNITS = (("EiB", GIB << 30), ("PiB", GIB << 20), ("TiB", GIB << 10), ("GiB", GIB))


def plan(
    *,
    tokens: int,
    vocab: int,
    hidden: int | None = None,
    tp: int = 1,
    dtype: Dtype = "bf16",
    entropy: Entropy = "none",
    backward: bool = True,
    chunk_size: int | None = None,
    gpu: str | None = None,
    memory_gib: float | None = None,
    used_gib: float = 0.0,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Plan the memory of token log-probs, before a run dies of it.

    Scoring T tokens over a vocabulary of V makes logits [T, V]; what is done with them decides whether that is all or a
    small part of it. Prints, for one rank, what each way of computing holds at its worst moment: the logits it starts
    from, what it needs on top, the sum, and whether that fits.

    How to read it: "rows" are held in full precision at a time. "on top" counts the gradient a way returns. From hidden
    states there are no logits at all, and the gradient of the output layer's weight, which the other ways make a moment
    later, is counted already. The model, its optimizer, and the activations are not part of the plan: give them with
    --used-gib.

    Examples: `logparity plan --tokens 32768 --vocab 151936 --tp 4 --gpu h100`, with hidden states and entropy
    `logparity plan --tokens 32768 --vocab 151936 --hidden 4096 --entropy grad --memory-gib 24`.

    Args:
        tokens: T, response tokens scored in one call (the packed length of a micro-batch).
        vocab: V, size of the vocabulary, padding included.
        hidden: H, size of the hidden states; adds the way that starts from them.
        tp: ranks that share the vocabulary (tensor parallel).
        dtype: of the logits, or of hidden states and weight.
        entropy: none, value, or grad (a gradient flows through it, as with an entropy bonus).
        backward: plan training; --no-backward plans scoring only.
        chunk_size: most rows held in full precision at a time; by default what logparity would take.
        gpu: name of a GPU, such as h100-80gb, a100-40gb, rtx-4090.
        memory_gib: memory of the device instead, in GiB.
        used_gib: GiB that are taken already.
        as_json: print one JSON object in place of the table.

    Returns:
        Exit code 0, or 1 where a device is given and no way fits it.
    """
    problem = Problem(tokens, vocab, hidden, tp, dtype, entropy, backward)
    if chunk_size is not None and chunk_size < 1:
        raise InputError(f"chunk_size: expected a whole number >= 1, got {chunk_size}.")
    room = _room_bytes(gpu, memory_gib, used_gib)
    plans = plan_ways(problem, chunk_size)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(problem, plans, room)) + "\n")
    else:
        console = Console()
        console.print(_title(problem, room), style="bold", highlight=False, markup=False)
        console.print(_table(plans, room))
        console.print(_verdict(plans, room), highlight=False, markup=False, soft_wrap=True)
    return 0 if room is None or any(one.total_bytes <= room for one in plans) else 1


def _room_bytes(gpu: str | None, memory_gib: float | None, used_gib: float) -> int | None:
    """Free bytes of the device; None where none is given."""
    if gpu is not None and memory_gib is not None:
        raise InputError("expected --gpu or --memory-gib, got both. Leave one out.")
    given = [used_gib] if memory_gib is None else [memory_gib, used_gib]
    if not all(0 <= size * GIB < math.inf for size in given) or memory_gib == 0:
        raise InputError(f"expected finite --memory-gib > 0 and --used-gib >= 0, got {memory_gib} and {used_gib}.")
    if gpu is None and memory_gib is None:
        if used_gib:
            raise InputError("--used-gib: expected a device to go with it, got none. Give --gpu or --memory-gib.")
        return None
    whole = gpu_mib(gpu) * MIB if gpu is not None else round((memory_gib or 0.0) * GIB)
    room = whole - round(used_gib * GIB)
    if room <= 0:
        raise InputError(f"--used-gib: expected less than the device's {whole / GIB:,.1f} GiB, got {used_gib}.")
    return room


def _title(problem: Problem, room: int | None) -> str:
    parts = [f"T={problem.tokens:,}", f"V={problem.vocab:,}"]
    parts += [f"H={problem.hidden:,}"] if problem.hidden is not None else []
    parts += [f"TP={problem.tp}", problem.dtype]
    parts += [] if problem.entropy == "none" else [f"entropy {problem.entropy}"]
    parts.append("forward and backward" if problem.backward else "forward")
    free = "" if room is None else f"; {_size(room)} free"
    return "Token log-probs on one rank: " + ", ".join(parts) + free


def _table(plans: tuple[MemoryPlan, ...], room: int | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("way of computing", overflow="fold", min_width=22)
    for name in ("rows", "logits", "on top", "sum"):
        table.add_column(name, justify="right", overflow="fold")
    if room is not None:
        table.add_column("fits", no_wrap=True)
    for one in plans:
        rows = "all" if one.chunk_size is None else f"{one.chunk_size:,}"
        cells = [one.way, rows, _size(one.logits_bytes), _size(one.peak_bytes), _size(one.total_bytes)]
        if room is not None:
            cells.append("[green]yes[/green]" if one.total_bytes <= room else "[red]no[/red]")
        table.add_row(*cells)
    return table


def _size(count: int) -> str:
    if count == 0:
        return "0"
    unit, name = next(((unit, name) for name, unit in _UNITS if count >= unit), (MIB, "MiB"))
    number = f"{count / unit:,.1f}" if count < 2**80 else f"{count // unit:,}"  # beyond that, more digits say nothing
    return f"{number} {name}"


def _verdict(plans: tuple[MemoryPlan, ...], room: int | None) -> str:
    """One sentence: the leanest way, and what to do where not even that fits."""
    leanest = min(plans, key=lambda one: one.total_bytes)
    says = f"Leanest: {leanest.way}, {_size(leanest.total_bytes)}."
    if room is None:
        return says + " Give --gpu or --memory-gib to see what fits."
    if leanest.total_bytes <= room:
        return says
    if any(one.logits_bytes == 0 for one in plans):
        return says + " Nothing fits: score fewer tokens a call, or share the vocabulary over more ranks (--tp)."
    return says + " Nothing fits: start from hidden states (--hidden), score fewer tokens a call, or raise --tp."


def _as_json(problem: Problem, plans: tuple[MemoryPlan, ...], room: int | None) -> dict[str, object]:
    return {
        "problem": {name: getattr(problem, name) for name in Problem.__slots__},
        "room_bytes": room,
        "ways": [
            {
                "way": one.way,
                "chunk_size": one.chunk_size,
                "logits_bytes": one.logits_bytes,
                "peak_bytes": one.peak_bytes,
                "total_bytes": one.total_bytes,
                "fits": None if room is None else one.total_bytes <= room,
            }
            for one in plans
        ],
    }
