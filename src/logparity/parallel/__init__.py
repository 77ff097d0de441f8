"""Who holds what: vocabulary shards, process groups, and the one collective of a call."""

from __future__ import annotations

from logparity.parallel.groups import group_rank, group_size, resolve_group
from logparity.parallel.vocab import ShardLayout, VocabShard

__all__ = ["ShardLayout", "VocabShard", "group_rank", "group_size", "resolve_group"]
