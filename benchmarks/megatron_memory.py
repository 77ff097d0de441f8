"""Peak memory of the real Megatron-Core actor, one measurement per fresh process.

``python -m benchmarks.megatron_memory`` prints the table of ``docs/megatron.md`` and writes
``benchmarks/results/megatron_memory.json``. A tiny Llama with a vocabulary of 131,072 runs through Megatron's schedule
on one CPU rank, so that nearly all memory is logits and what is made of them. Counted is the kernel's high-water mark
beyond what was resident before the call: model-precision logits are part of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB = 131072
TOKENS = {"score": 2880, "train": 512}
WAYS = ("fp32_plain", "fp32_chunked", "model")
"""A float32 output and a log-softmax of it; a float32 output and this package's operation; what the actor does."""
RESULTS = Path(__file__).parent / "results" / "megatron_memory.json"


def main() -> None:
    """Measure everything, print, and write."""
    found: dict[str, Any] = {}
    for task, tokens in TOKENS.items():
        for way in WAYS:
            found[f"{task} {way}"] = {"tokens": tokens, "vocab": VOCAB, "peak_mib": measured_mib(task, way, tokens)}
            print(f"{task:6} T={tokens:5} V={VOCAB} {way:12} {found[f'{task} {way}']['peak_mib']:8.1f} MiB", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


def measured_mib(task: str, way: str, tokens: int) -> float:
    """Peak of one call in a fresh process, in MiB beyond what was resident before it."""
    # Blocks from 64 KiB on come straight from the kernel and go back to it: the high-water mark is what was in use.
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "benchmarks.megatron_memory", task, way, str(tokens)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def worker(task: str, way: str, tokens: str) -> None:
    """Print the peak of one call in MiB."""
    import torch
    import torch.distributed as dist

    from benchmarks.measure import MIB, peak_extra_bytes

    with tempfile.TemporaryDirectory() as scratch:
        dist.init_process_group("gloo", store=dist.FileStore(f"{scratch}/store", 1), rank=0, world_size=1)
        torch.set_num_threads(1)
        call = _call(Path(scratch) / "model", task, way)
        call(64)  # loads kernels
        print(json.dumps(peak_extra_bytes(lambda: call(int(tokens))) / MIB))
        dist.destroy_process_group()


def _call(folder: Path, task: str, way: str) -> Callable[[int], object]:
    """A function that scores or trains one packed sequence of so many response tokens."""
    from logparity.actors.megatron import (
        MegatronActor,
        MegatronConfig,
        MicroBatchSize,
        ParallelSizes,
        initialize_groups,
    )
    from logparity.actors.megatron.forward import forward_backward, forward_only
    from logparity.actors.megatron.training import PolicyLoss
    from logparity.losses import SFTObjective
    from logparity.losses.base import Denominators
    from tests.support.tiny_models import save_tiny_llama

    save_tiny_llama(folder, vocab_size=VOCAB, hidden_size=32, layers=1, tied=False, context=4096, spread=0.02)
    config = MegatronConfig(micro_batch=MicroBatchSize(tokens=4096))
    actor = MegatronActor(folder, initialize_groups(ParallelSizes()), SFTObjective(), config=config)
    engine = actor._engine
    wide = way != "model"

    def run(tokens: int) -> object:
        batch = one_long_sequence(tokens)
        batches = engine.micro_batches(batch.tokens)
        if task == "score":
            if not wide:
                return actor.score(batch.tokens)
            scores = _plain_scores if way == "fp32_plain" else _chunked_scores
            return forward_only(scores, engine.model, batches, fp32_output=True)
        loss: Any = _plain_loss
        if way != "fp32_plain":
            loss = PolicyLoss(SFTObjective(), batch, Denominators(tokens, 1), engine.model, recompute=False)
        return forward_backward(loss, engine.model, batches, fp32_output=wide)

    return run


def _plain_scores(output: Any, batch: Any) -> Any:
    """What a trainer does with float32 logits: a log-softmax of all rows."""
    import torch

    return torch.log_softmax(output[0], -1)[batch.rows, batch.targets]


def _chunked_scores(output: Any, batch: Any) -> Any:
    from logparity.ops import token_log_probs

    return token_log_probs(output[0], batch.targets, rows=batch.rows).log_probs


def _plain_loss(output: Any, batch: Any) -> Any:
    loss = -_plain_scores(output, batch).mean()
    return loss, (loss.detach(), {})


def one_long_sequence(tokens: int) -> Any:
    """A training batch of one sequence with a prompt of one token."""
    import numpy as np

    from logparity.records import TokenBatch, TrainingBatch

    rng = np.random.default_rng(0)
    batch = TokenBatch(
        keys=("one",),
        prompt_ids=(rng.integers(3, VOCAB, 1),),
        response_ids=(rng.integers(3, VOCAB, tokens - 1),),
        response_mask=(np.ones(tokens - 1, dtype=bool),),
        temperature=np.ones(1, dtype=np.float32),
    )
    zeros = (np.zeros(tokens - 1, dtype=np.float32),)
    return TrainingBatch(batch, zeros, zeros)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(*sys.argv[1:])
    else:
        main()
