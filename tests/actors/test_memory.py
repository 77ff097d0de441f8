"""Scoring 4,096 tokens over 49,152 ids stays below the bytes of one float32 copy of their logits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_models import save_tiny_llama

TOKENS, VOCAB = 4096, 49152
ONE_FP32_COPY = TOKENS * VOCAB * 4

PROBE = """
import resource, sys
import numpy as np
from logparity.actors import HFActor
from logparity.records import TokenBatch

def batch(sequences, length):
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 49152, 8) for _ in range(sequences)]
    out = [rng.integers(0, 49152, length) for _ in range(sequences)]
    return TokenBatch(tuple(map(str, range(sequences))), tuple(ids), tuple(out),
                      tuple(np.ones(length, bool) for _ in out), np.full(sequences, 0.9))

actor = HFActor(sys.argv[1], device="cpu", micro_batch_tokens=max(1024, 8 + int(sys.argv[3])))
actor.score(batch(1, 4), entropy=True)  # loads every library and kernel
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scored = actor.score(batch(*map(int, sys.argv[2:])), entropy=True)
assert all(np.isfinite(v).all() for v in scored.log_probs)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def extra_bytes(folder: Path, sequences: int) -> int:
    """Growth of a fresh process's high-water mark while it scores."""
    arguments = [sys.executable, "-c", PROBE, str(folder), str(sequences), str(TOKENS // sequences)]
    return int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("sequences", [32, 1])
def test_scoring_needs_less_than_one_fp32_copy_of_the_logits(tmp_path: Path, sequences: int) -> None:
    folder = save_tiny_llama(tmp_path / "llama", vocab_size=VOCAB, hidden_size=32, context=8192)
    assert extra_bytes(folder, sequences) < ONE_FP32_COPY / 2


TRAIN = """
import resource, sys
import numpy as np
from logparity.actors import HFActor
from logparity.losses import PolicyObjective
from logparity.records import TokenBatch, TrainingBatch

def batch(sequences, length):
    rng = np.random.default_rng(0)
    out = tuple(rng.integers(0, 49152, length) for _ in range(sequences))
    tokens = TokenBatch(tuple(map(str, range(sequences))), tuple(rng.integers(0, 49152, 1) for _ in out), out,
                        tuple(np.ones(length, bool) for _ in out), np.full(sequences, 0.9))
    one = tuple(np.ones(length, np.float32) for _ in out)
    return TrainingBatch(tokens, one, tuple(-8 * v for v in one))

actor = HFActor(sys.argv[1], PolicyObjective(), device="cpu")
actor.train_step(batch(1, 4))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
actor.train_step(batch(4, 255))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_training_holds_the_logits_once_in_model_precision(tmp_path: Path) -> None:
    """1,020 rows of bfloat16 logits take 96 MiB, their gradient takes the same place; float32 would add 192."""
    folder = save_tiny_llama(tmp_path / "llama", vocab_size=VOCAB, hidden_size=32, context=8192)
    done = subprocess.run([sys.executable, "-c", TRAIN, str(folder)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 1.4 * 1020 * VOCAB * 2


@pytest.mark.model
def test_the_real_model_does_too_activations_included(smollm2_folder: Path) -> None:
    assert extra_bytes(smollm2_folder, 32) < ONE_FP32_COPY
