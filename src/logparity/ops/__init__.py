"""Token log-probs and entropy from logits or hidden states: exact, flat in memory, over any vocabulary shard."""

from __future__ import annotations

from logparity.ops.api import token_log_probs
from logparity.ops.choice import Choice, choose
from logparity.ops.on_policy import on_policy_token_log_probs
from logparity.ops.results import TokenLogProbs
from logparity.ops.support import Support

__all__ = ["Choice", "Support", "TokenLogProbs", "choose", "on_policy_token_log_probs", "token_log_probs"]
