"""Axis letters, signs, and units: the one home of logparity's conventions.

Axes
    T  packed tokens            V  vocabulary             H  hidden size
    B  sequences in a batch     P  prompt length          R  response length

Units
    Every log-probability, entropy, and divergence is in nats.

Signs
    ``log_ratio = old_log_probs - rollout_log_probs``   train minus rollout (comparison of the two sides)
    ``log_ratio_new = log_probs - old_log_probs``       policy now minus policy before the update (losses)

Alignment
    The logits row that predicts token ``t`` of a sequence is row ``t - 1``. Response token ``j`` of a sequence with a
    prompt of ``P`` tokens is predicted by row ``P - 1 + j``. `logparity.layout.shift` alone applies it.

Masks
    ``response_mask`` is 1 on tokens that the policy generated and 0 on prompt, padding, and tool output.
"""

from __future__ import annotations

from typing import Final

IGNORE_INDEX: Final = -100
"""Target id that asks for no log-probability at a position, as in ``torch.nn.functional.cross_entropy``."""

MAX_LOG_RATIO: Final = 20.0
"""``exp`` of a log-ratio is taken of its clamp to +-20 nats; clamped values are counted, never hidden."""
