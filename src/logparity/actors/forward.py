"""From token ids to the log-probs of response tokens, with logits in model precision from end to end.

Only the rows that predict a wanted token go through the LM head; the float32 upcast, the temperature, and the
log-softmax happen inside `logparity.ops.token_log_probs`, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from logparity.layout.padded import PaddedBatch
from logparity.losses.base import EntropyMode, LogitPrecision
from logparity.ops import token_log_probs
from logparity.parallel.vocab import VocabShard

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

HEAD_ROWS = 1024
"""Rows projected through the LM head at a time: their logits are the largest tensor there is."""


def response_log_probs(
    model: PreTrainedModel,
    batch: PaddedBatch,
    temperature: Tensor,
    *,
    entropy: EntropyMode = EntropyMode.NONE,
    precision: LogitPrecision = LogitPrecision.MODEL,
    head_options: Mapping[str, float] | None = None,
    recompute: bool = False,
    shard: VocabShard | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs, and entropy on request, of a padded batch's response tokens.

    Args:
        model: a causal language model; gradients flow where they are enabled.
        batch: the sequences and the rows wanted.
        temperature: float32 ``[N]``, divides the logits of each row after the upcast.
        entropy: whether the entropy is computed, and whether a gradient flows through it.
        precision: precision of the logits; ``FP32`` upcasts all of a slice's rows at once.
        head_options: ``logit_softcap`` and ``logit_scale`` of the model family.
        recompute: project a slice's rows again in the backward instead of keeping its logits.
        shard: the vocabulary's columns that this rank's LM head computes; None for all.

    Returns:
        float32 ``[N]`` log-probs in nats, and float32 ``[N]`` entropy in nats or None.

    Memory:
        Model-precision logits of at most ``HEAD_ROWS`` rows without gradient or with ``recompute``, of ``N`` rows
        otherwise; the gradient is written into their storage.
    """
    hidden = model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    hidden = hidden.flatten(0, 1)[batch.rows]
    head = model.get_output_embeddings()

    def score(rows: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = head(rows)
        scored = token_log_probs(
            logits.float() if precision is LogitPrecision.FP32 else logits,
            targets,
            temperature=temperature,
            entropy=entropy.value,
            shard=shard,
            grad_into_logits=torch.is_grad_enabled() and logits.requires_grad,
            **(head_options or {}),
        )
        return scored.log_probs, scored.entropy

    log_probs: list[Tensor] = []
    entropies: list[Tensor] = []
    # A batch without wanted tokens still makes one empty slice: empty results of the right dtype.
    for start in range(0, max(len(batch.targets), 1), HEAD_ROWS):
        part = slice(start, start + HEAD_ROWS)
        slices = (hidden[part], batch.targets[part], temperature[part])
        scored, entropies_of = checkpoint(score, *slices, use_reentrant=False) if recompute else score(*slices)
        log_probs.append(scored)
        if entropies_of is not None:
            entropies.append(entropies_of)
    return torch.cat(log_probs), torch.cat(entropies) if entropies else None


__all__ = ["HEAD_ROWS", "response_log_probs"]
