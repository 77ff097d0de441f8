"""The actor's peak memory, by the kernel's high-water mark of a fresh process."""

from __future__ import annotations

from benchmarks.megatron_memory import VOCAB, measured_mib

TOKENS = 512
LOGITS_MIB = 2 * TOKENS * VOCAB / 2**20


def test_scoring_takes_little_more_than_model_precision_logits() -> None:
    assert LOGITS_MIB < measured_mib("score", "model", TOKENS) < LOGITS_MIB + 40


def test_training_takes_less_than_half_of_what_was_published() -> None:
    """Forward and backward through logits, loss, and LM head; 304 MiB were published for the loss alone."""
    assert LOGITS_MIB < measured_mib("train", "model", TOKENS) < LOGITS_MIB + 40 < 304 / 1.5
