"""The names that trainers and engines give to the same things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logparity.errors import InputError

ALIASES: Mapping[str, tuple[str, ...]] = {
    "rollout_log_probs": (
        "rollout_log_probs",
        "sampling_per_token_logps",
        "generation_logprobs",
        "inference_logprobs",
        "rollout_per_token_logps",
    ),
    "old_log_probs": ("old_log_probs", "old_per_token_logps", "prev_logprobs", "trainer_logprobs", "log_probs"),
    "response_mask": ("response_mask", "completion_mask", "loss_mask", "loss_masks", "token_mask", "attention_mask"),
    "token_ids": ("responses", "response_ids", "completion_ids", "token_ids", "input_ids", "tokens"),
    "boundaries": ("cu_seqlens", "offsets"),
    "lengths": ("response_lengths", "response_length", "lengths", "seq_lens"),
    "keys": ("keys", "key", "sample_indices", "uid"),
    "tool_mask": ("tool_mask",),
}
"""Our name to the names found in files, the first that is there wins."""

NEEDED = ("rollout_log_probs", "old_log_probs")


def resolve(present: Iterable[str], source: str) -> tuple[dict[str, str], list[str]]:
    """Find our names in a file.

    Args:
        present: names in the file.
        source: the file, for messages.

    Returns:
        Our name to the file's, and notes on names that were left aside.

    Raises:
        InputError: a side is missing; says which names were looked for.
    """
    names = set(present)
    found: dict[str, str] = {}
    notes = []
    for ours, aliases in ALIASES.items():
        there = [alias for alias in aliases if alias in names]
        if there:
            found[ours] = there[0]
        if len(there) > 1 and ours in (*NEEDED, "response_mask"):
            notes.append(f"{ours}: read from {there[0]}; {', '.join(there[1:])} left aside")
    for ours in NEEDED:
        if ours not in found:
            raise InputError(
                f"{source}: expected one of {' | '.join(ALIASES[ours])}, got {', '.join(sorted(names)[:12]) or 'none'}."
                " Both sides are needed."
            )
    return found, notes


__all__ = ["ALIASES", "NEEDED", "resolve"]
