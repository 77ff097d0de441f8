"""miles and slime: functions for their ``--..-path`` options, and their log-prob function replaced by ours.

``--rollout-data-postprocess-path logparity.integrations.miles.rollout_data_postprocess``
    compares all samples of a rank once they are scored (slime; miles calls this hook without the data).
``--get-mismatch-metrics --custom-tis-function-path logparity.integrations.miles.observe_tis``
    compares every micro-batch in the loss and changes nothing (both).
``--custom-megatron-init-path logparity.integrations.miles.use_token_log_probs``
    scores with our operation in place of the host's (both).

The environment variable ``LOGPARITY_SAVE_DIR`` names a folder for the ``.npy`` pairs of the first; each rank writes its
own ``rank{r}`` below it. The first writes its metrics to the log, the second to the host's own metrics.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logparity.integrations.miles_batch import flat_pairs, sample_pairs
from logparity.integrations.rebind import Replaced, rebind
from logparity.integrations.step_probe import HostBatch, StepProbe
from logparity.probe.config import ProbeConfig

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("logparity.miles")

SAVE_DIR_VARIABLE = "LOGPARITY_SAVE_DIR"
_HOMES = ("miles.utils.ppo_utils", "slime.utils.ppo_utils")


def rollout_data_postprocess(args: Any, rollout_id: int | None = None, rollout_data: Any = None) -> None:
    """Compare all samples that a rank trains on, once their log-probs are known (``--rollout-data-postprocess-path``).

    Args:
        args: the host's settings; not read.
        rollout_id: number of the rollout.
        rollout_data: lists with one entry per sample: ``rollout_log_probs``, ``log_probs``, ``loss_masks``. miles calls
            this hook without it: there, use `observe_tis`.
    """
    del args
    probe = _probe()
    if rollout_data is None:
        probe.say("empty", "this host calls the hook without data: use --custom-tis-function-path observe_tis")
        return
    _tell(probe.observe(lambda: HostBatch(sample_pairs(rollout_data)), step=rollout_id or 0), rollout_id)


def observe_tis(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    **extra: Any,
) -> tuple[Tensor, Sequence[Tensor], dict[str, Tensor]]:
    """Compare a micro-batch and change nothing (``--custom-tis-function-path`` with ``--get-mismatch-metrics``).

    Args:
        args: the host's settings; not read.
        pg_loss: the loss per token, handed back as it is.
        train_log_probs: one ``[R_b]`` per sequence, nats.
        rollout_log_probs: the same from the engine.
        loss_masks: one ``[R_b]`` per sequence, handed back as they are.
        total_lengths: not read.
        response_lengths: not read.
        **extra: what newer versions add; not read.

    Returns:
        The loss, the masks, and metrics per token ``[sum R_b]``, which the host averages over its masks:
        ``logparity_prob_diff`` and ``logparity_log_ratio_abs``. Empty where the sides cannot be compared.
    """
    del args, total_lengths, response_lengths, extra
    probe = _probe()
    metrics = probe.guard(lambda: flat_pairs(train_log_probs, rollout_log_probs), "micro-batch")
    return pg_loss, loss_masks, metrics or {}


def calculate_log_probs_and_entropy(
    logits: Tensor,
    tokens: Tensor,
    tp_group: Any,
    with_entropy: bool = False,
    entropy_no_grad: bool = False,
    chunk_size: int = -1,  # noqa: ARG001
    true_on_policy: bool = False,
    vocab_size: int | None = None,
    log_prob_keep_mask: Tensor | None = None,
    with_entropy_grad: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Score tokens as miles' and slime's function of this name does, over any number of vocabulary shards.

    Args:
        logits: ``[R, V_local]``, temperature applied.
        tokens: int64 ``[R]``, global ids.
        tp_group: ranks that hold the other columns, in equal shards; None for one process.
        with_entropy: compute the entropy too.
        entropy_no_grad: miles: no gradient through it.
        chunk_size: ours to choose; results do not depend on it.
        true_on_policy: miles: log-probs come out ``[R]``, and columns from ``vocab_size`` on are padding.
        vocab_size: see there.
        log_prob_keep_mask: slime: bool ``[R, V_local]``, columns that log-probs are renormalised over.
        with_entropy_grad: slime: a gradient through the entropy.

    Returns:
        Log-probs ``[R, 1]`` (``[R]`` for true on-policy) and entropy ``[R]`` or None, nats.
    """
    from logparity.integrations.miles_scores import shard_scores

    mode = "none"
    if with_entropy:
        mode = "value" if entropy_no_grad or not with_entropy_grad else "grad"
    log_probs, entropy = shard_scores(
        logits,
        tokens,
        tp_group,
        entropy=mode,
        valid_vocab_size=vocab_size if true_on_policy else None,
        keep=log_prob_keep_mask,
    )
    return log_probs if true_on_policy else log_probs.unsqueeze(-1), entropy


def use_token_log_probs(*args: Any) -> Replaced:
    """Replace ``calculate_log_probs_and_entropy`` by ours (``--custom-megatron-init-path``, or call it).

    Args:
        *args: what the option's caller passes; not read.

    Returns:
        Where it was replaced; its ``undo`` puts the original back.
    """
    del args
    done = Replaced()
    for home in _HOMES:
        try:
            module = import_module(home)
        except ModuleNotFoundError:
            continue
        original: Callable[..., Any] = module.calculate_log_probs_and_entropy
        done += rebind(home.split(".")[0], original, calculate_log_probs_and_entropy)
    if not done.places:
        logger.warning("logparity: neither miles nor slime is installed here; nothing replaced.")
    return done


@lru_cache(maxsize=1)
def _probe() -> StepProbe:
    """The process's probe: hooks are plain functions, so what was said and counted has no other home."""
    folder = os.environ.get(SAVE_DIR_VARIABLE)
    save_dir = Path(folder) / f"rank{os.environ.get('RANK', '0')}" if folder else None
    return StepProbe(ProbeConfig(enabled=True, save_dir=save_dir, token_max_print=0), logger)


def _tell(metrics: Mapping[str, float], rollout_id: int | None) -> None:
    shown = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    logger.info("logparity: rollout %s: %s", rollout_id, shown)


__all__ = [
    "calculate_log_probs_and_entropy",
    "observe_tis",
    "rollout_data_postprocess",
    "use_token_log_probs",
]
