"""What only GPUs can show of the Megatron actor: NCCL, Transformer Engine, combined 1F1B, device memory.

``torchrun --nproc-per-node 2 -m benchmarks.megatron_gpu_check`` on one node with two GPUs (or more, even in number).
Prints one line per check and ends with an error where one fails.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from logparity.actors.megatron import (
    MegatronActor,
    MegatronConfig,
    MicroBatchSize,
    ParallelSizes,
    forward_only,
    initialize_groups,
    release_groups,
)
from tests.support.megatron_truth import OBJECTIVE, OPTIMIZER, Truth, compute_truth, mean_gap
from tests.support.tiny_families import save_family

MIB = 2**20


def main() -> None:
    """Run every check."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    folder = _shared_folder()
    dense, experts = _truth(folder, "llama"), _truth(folder, "qwen3_moe")
    layouts = {
        "tensor and sequence parallel": ({"tensor": 2, "sequence_parallel": True}, {}),
        "context parallel, zigzag": ({"context": 2}, {}),
        "context parallel, contiguous": ({"context": 2, "context_layout": "contiguous"}, {}),
        "pipeline, 1F1B": ({"pipeline": 2}, {}),
        "pipeline, interleaved": ({"pipeline": 2, "virtual_pipeline": 2}, {}),
        "data parallel, distributed optimizer": ({}, {"distributed_optimizer": True}),
    }
    for name, (sizes, settings) in layouts.items():
        _against_truth(name, dense, ParallelSizes(**sizes), settings)
    _against_truth("experts", experts, ParallelSizes(expert=2), {})
    _combined_1f1b(experts)
    _memory(folder, world)
    dist.destroy_process_group()


def _shared_folder() -> Path:
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return Path(str(box[0]))


def _truth(folder: Path, family: str) -> Truth:
    """One process on Transformers on the CPU, told to every rank."""
    box = [compute_truth(save_family(folder / family, family)) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    assert box[0] is not None
    return box[0]


def _against_truth(name: str, truth: Truth, sizes: ParallelSizes, settings: dict[str, Any]) -> None:
    groups = initialize_groups(sizes)
    config = MegatronConfig(dtype="bfloat16", micro_batch=MicroBatchSize(tokens=40), **settings)
    actor = MegatronActor(truth.folder, groups, OBJECTIVE, OPTIMIZER, config=config)
    budget = 2 * mean_gap(truth.half_scores.log_probs, truth.scores.log_probs)
    gap = mean_gap(actor.score(truth.batch.tokens).log_probs, truth.scores.log_probs)
    norm = actor.train_step(truth.batch)["actor/grad_norm"] / truth.metrics["actor/grad_norm"]
    _report(name, gap <= budget and abs(norm - 1) < 0.05, {"gap over bf16 budget": gap / budget, "norm ratio": norm})
    release_groups()


def _combined_1f1b(truth: Truth) -> None:
    """The combined schedule gives the plain one's numbers, and its last stage's output is bfloat16."""
    from logparity.actors.megatron import training

    groups = initialize_groups(ParallelSizes(expert=2))
    found, dtypes = {}, set()
    score = training.response_scores

    def watched(output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dtypes.add(output.dtype)
        return score(output, *args, **kwargs)

    training.response_scores = watched
    for overlap in (False, True):
        config = MegatronConfig(micro_batch=MicroBatchSize(tokens=40), overlap_experts=overlap)
        actor = MegatronActor(truth.folder, groups, OBJECTIVE, OPTIMIZER, config=config)
        found[overlap] = actor.train_step(truth.batch)
    training.response_scores = score
    ratios = {name: found[True][name] / found[False][name] for name in ("loss", "actor/grad_norm")}
    same = all(abs(ratio - 1) < 1e-2 for ratio in ratios.values())
    _report("combined 1F1B", same and dtypes == {torch.bfloat16}, ratios)
    release_groups()


def _memory(folder: Path, world: int) -> None:
    """Peak device memory of scoring beyond what is resident, with and without a float32 output."""
    from benchmarks.megatron_memory import VOCAB, one_long_sequence
    from tests.support.tiny_models import save_tiny_llama

    tokens = 2880
    if dist.get_rank() == 0:
        save_tiny_llama(folder / "wide", vocab_size=VOCAB, hidden_size=64, layers=1, tied=False, context=4096)
    dist.barrier()
    groups = initialize_groups(ParallelSizes(tensor=world, sequence_parallel=True))
    actor = MegatronActor(folder / "wide", groups, config=MegatronConfig(micro_batch=MicroBatchSize(tokens=4096)))
    batch = one_long_sequence(tokens).tokens
    batches = actor._engine.micro_batches(batch)
    peaks = {}
    for wide in (True, False):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        if wide:
            forward_only(lambda _output, _batch: None, actor._engine.model, batches, fp32_output=True)
        else:
            actor.score(batch)
        peaks["float32 output" if wide else "model precision"] = (torch.cuda.max_memory_allocated() - before) / MIB
    logits = 2 * tokens * VOCAB / world / MIB
    _report("memory", peaks["model precision"] < logits + 40, peaks | {"bf16 logits": logits})
    release_groups()


def _report(name: str, good: bool, figures: dict[str, float]) -> None:
    if dist.get_rank() == 0:
        print(f"{'ok' if good else 'FAILED'}  {name}: {json.dumps(figures)}", flush=True)
    if not good:
        raise SystemExit(f"{name} failed: {figures}")


if __name__ == "__main__":
    main()
