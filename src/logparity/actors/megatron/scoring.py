"""Post-processors of the last stage: log-probs and entropy from logits in model precision, values from a value head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from logparity.actors.megatron.batches import MicroBatch
from logparity.actors.megatron.forward import forward_only
from logparity.losses.base import EntropyMode
from logparity.ops import token_log_probs

if TYPE_CHECKING:
    from logparity.actors.megatron.build import MegatronModel
    from logparity.actors.megatron.vocabulary import Vocabulary


def response_scores(
    output: Tensor, batch: MicroBatch, vocabulary: Vocabulary, entropy: EntropyMode, *, in_place: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs, and entropy on request, of a micro-batch's response tokens on this context-parallel rank.

    Args:
        output: logits ``[b, s, V / TP]`` of this rank, in whatever precision the model gave.
        batch: rows, targets, and temperatures.
        vocabulary: which columns these are.
        entropy: whether the entropy is computed, and whether a gradient flows through it.
        in_place: let the backward write the gradient over the logits.

    Returns:
        float32 ``[n]`` log-probs in nats, and float32 ``[n]`` entropy in nats or None.

    Memory:
        A few rows in float32, never a copy of the logits.
    """
    if not batch.targets.numel():  # the same on every tensor-parallel rank: none of them enters the collective
        nothing = torch.zeros(0, dtype=torch.float32, device=output.device)
        return nothing, None if entropy is EntropyMode.NONE else nothing
    scored = token_log_probs(
        output.flatten(0, 1),
        batch.targets,
        rows=batch.rows,
        temperature=batch.temperature,
        entropy=entropy.value,
        shard=vocabulary.shard,
        valid_vocab_size=vocabulary.size,
        grad_into_logits=in_place,
    )
    return scored.log_probs, scored.entropy


def response_values(output: Tensor, batch: MicroBatch) -> Tensor:
    """Values ``[n]`` of a micro-batch's response tokens from a value head's output ``[b, s, 1]``."""
    return output.flatten()[batch.rows]


def compute_log_prob(
    batches: Sequence[MicroBatch], prefix: str, model: MegatronModel, *, entropy: bool = False
) -> dict[str, list[Tensor]]:
    """Score micro-batches under a policy, reference, or teacher; logits stay in model precision.

    Args:
        batches: this data-parallel rank's micro-batches.
        prefix: put before the names of the results: ``""``, ``"ref_"``, ``"teacher_"``.
        model: whose weights score.
        entropy: also give the full-vocabulary entropy.

    Returns:
        ``{prefix}log_probs``, and ``{prefix}entropy`` on request: float32 ``[n]`` per micro-batch, in nats, on the last
        stage; empty lists on others. They cover this context-parallel rank's tokens.
    """
    mode = EntropyMode.VALUE if entropy else EntropyMode.NONE
    scored = forward_only(
        lambda output, batch: response_scores(output, batch, model.vocabulary, mode),
        model,
        batches,
        fp32_output=False,
    )
    results = {f"{prefix}log_probs": [log_probs for log_probs, _ in scored]}
    if entropy:
        results[f"{prefix}entropy"] = [found for _, found in scored if found is not None]
    return results


def compute_values(batches: Sequence[MicroBatch], model: MegatronModel) -> dict[str, list[Tensor]]:
    """Values of response tokens under a critic; its output is float32.

    Args:
        batches: this data-parallel rank's micro-batches.
        model: a model built with a value head.

    Returns:
        ``values``: float32 ``[n]`` per micro-batch on the last stage; an empty list on others.
    """
    return {"values": forward_only(response_values, model, batches, fp32_output=True)}


__all__ = ["compute_log_prob", "compute_values", "response_scores", "response_values"]
