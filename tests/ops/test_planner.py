"""Plans against the kernel's high-water mark, and against arithmetic by hand."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from logparity.errors import InputError
from logparity.ops.planner import plan_memory
from logparity.ops.sizes import Problem
from logparity.ops.ways import plan_ways
from tests.support.peak_memory import peak_bytes

MIB = 2**20

MEASURED = [
    {"tokens": 512, "vocab": 131072, "chunk_size": 64},
    {"tokens": 512, "vocab": 131072, "chunk_size": 64, "backward": False},
    {"tokens": 512, "vocab": 131072, "chunk_size": 64, "grad_into_logits": True},
    {"tokens": 512, "vocab": 151936, "tp": 4, "entropy": "grad"},
    {"tokens": 1024, "vocab": 32768, "entropy": "value", "backward": False},
    {"tokens": 300, "vocab": 50257, "dtype": "fp32"},
    {"tokens": 4000, "vocab": 1003, "dtype": "fp16", "entropy": "grad"},
    {"tokens": 1024, "vocab": 32768, "hidden": 128, "from_hidden": True},
    {"tokens": 1500, "vocab": 16384, "hidden": 128, "from_hidden": True, "entropy": "grad"},
    {"tokens": 1024, "vocab": 50257, "hidden": 64, "from_hidden": True, "backward": False, "entropy": "value"},
    {"tokens": 600, "vocab": 20000, "hidden": 256, "from_hidden": True, "dtype": "fp32"},
    {"tokens": 600, "vocab": 20000, "hidden": 256, "from_hidden": True, "chunk_size": 100},
]
LARGE = [
    {"tokens": 8192, "vocab": 151936, "grad_into_logits": True},
    {"tokens": 2048, "vocab": 151936, "hidden": 1024, "from_hidden": True},
    {"tokens": 2048, "vocab": 151936, "entropy": "grad"},
]


def check(problem: dict, measured: int) -> None:
    planned = plan_memory(**problem).peak_bytes
    assert abs(planned - measured) <= max(2 * MIB, 0.05 * measured), (
        f"{problem}: planned {planned / MIB:.1f} MiB, measured {measured / MIB:.1f} MiB"
    )


def test_plans_are_what_a_run_takes() -> None:
    for problem, measured in zip(MEASURED, peak_bytes(MEASURED), strict=True):
        check(problem, measured)


@pytest.mark.slow
def test_plans_of_large_shapes_are_what_a_run_takes() -> None:
    for problem, measured in zip(LARGE, peak_bytes(LARGE), strict=True):
        check(problem, measured)


def test_the_published_shape_stays_under_the_published_limits() -> None:
    shape = {"tokens": 512, "vocab": 131072, "chunk_size": 64}
    forward, fresh, in_place = peak_bytes([shape | {"backward": False}, shape, shape | {"grad_into_logits": True}])
    assert forward <= 36 * MIB
    assert fresh <= 164 * MIB
    assert in_place <= 40 * MIB


def test_naive_plan_is_three_full_precision_copies() -> None:
    naive = plan_ways(Problem(tokens=2048, vocab=151936))[0]
    assert naive.peak_bytes == 3 * 4 * 2048 * 151936
    assert naive.logits_bytes == 2 * 2048 * 151936


def test_memory_does_not_grow_with_tokens_beyond_a_few_bytes_each() -> None:
    small, large = (
        plan_memory(tokens=tokens, vocab=151936, grad_into_logits=True).peak_bytes for tokens in (10_000, 110_000)
    )
    assert (large - small) / 100_000 <= 64


def test_shards_share_the_vocabulary() -> None:
    whole, quarter = (plan_memory(tokens=4096, vocab=151936, tp=tp) for tp in (1, 4))
    assert quarter.logits_bytes * 4 == whole.logits_bytes


def test_a_budget_picks_the_largest_chunk_that_fits() -> None:
    budget = 131 * MIB
    plan = plan_memory(tokens=512, vocab=131072, budget_bytes=budget)
    assert plan.chunk_size is not None
    assert plan.peak_bytes <= budget
    more = plan_memory(tokens=512, vocab=131072, chunk_size=plan.chunk_size + 1)
    assert more.peak_bytes > budget


def test_a_budget_that_no_chunk_fits_says_what_would() -> None:
    with pytest.raises(InputError, match=r"128\.\d MiB, got 100\.0 MiB"):
        plan_memory(tokens=512, vocab=131072, budget_bytes=100 * MIB)


def test_table_shows_every_tensor_and_the_peak() -> None:
    plan = plan_memory(tokens=512, vocab=131072)
    text = plan.table()
    assert re.search(r"gradient of the logits +\[512, 131072\] +bf16 +128\.0 +backward", text)
    assert f"{plan.peak_bytes / MIB:,.1f}" in text.splitlines()[-1]
    assert sum(tensor.bytes for tensor in plan.tensors if tensor.backward) == plan.peak_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": -1}, "tokens: expected a whole number >= 0, got -1"),
        ({"vocab": 0}, "vocab: expected a whole number >= 1, got 0"),
        ({"dtype": "int8"}, "dtype: expected one of bf16, fp16, fp32, fp64, got 'int8'"),
        ({"entropy": "yes"}, "entropy: expected one of none, value, grad"),
        ({"chunk_size": 0}, "chunk_size: expected 'auto' or a whole number >= 1, got 0"),
        ({"from_hidden": True}, "hidden: expected the hidden size"),
    ],
)
def test_bad_problems_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_memory(**({"tokens": 8, "vocab": 8} | options))


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from logparity import plan_memory\n"
        "print(plan_memory(tokens=8, vocab=1000).peak_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
