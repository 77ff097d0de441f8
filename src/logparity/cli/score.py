"""``logparity score``: log-probs of given tokens under a model, and how far they are from the engine's."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from logparity.cli.plain_text import plain
from logparity.cli.threshold import exit_code, require_limit
from logparity.errors import ConfigError, InputError, MissingDependencyError
from logparity.training.config import EMBEDDED_MODEL
from logparity.training.score_target import score_target

if TYPE_CHECKING:
    from logparity.training.score_file import ScoreSummary

_SHOWN = {
    "training/rollout_probs_diff_mean": "mean |p_rollout - p_train|",
    "training/rollout_probs_diff_max": "max |p_rollout - p_train|",
    "training/rollout_actor_probs_pearson_corr": "correlation of the two probabilities",
    "mismatch/log_ratio_mean": "mean log-ratio, train minus rollout (nats)",
    "mismatch/log_ratio_abs_mean": "mean |log-ratio| (nats)",
    "mismatch/log_ratio_abs_max": "max |log-ratio| (nats)",
    "mismatch/k3": "KL(rollout || train), k3 estimate (nats)",
    "mismatch/tokens": "tokens compared",
    "mismatch/excluded_tokens": "tokens left out: a log-prob is not finite or positive",
    "mismatch/zero_train_prob_tokens": "tokens that the model says cannot happen",
}


def score(
    rollouts: Path,
    *,
    model: str = EMBEDDED_MODEL,
    out: Path | None = None,
    entropy: Annotated[bool, Parameter(negative="")] = False,
    temperature: float | None = None,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    device: str | None = None,
    micro_batch_tokens: int = 1024,
    fail_above: float | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Score response tokens under a model, and compare with what the rollout engine reported.

    Reads the Parquet rollouts of a run (a file or the folder runs/NAME/rollouts), or Parquet or JSON lines from any
    engine: rows with prompt_ids and response_ids, and where known key, response_mask, rollout_log_probs, temperature
    and log_prob_mode (raw: before temperature, or processed: after). Writes one Parquet row a sequence with the
    log-prob, in nats, of every response token, never into a folder of rollouts, whose readers would take it for one.

    The logits stay in model precision and are divided by the temperature in float32; raw log-probs are scored at
    temperature 1. Where the file holds rollout log-probs, the comparison is printed: between two healthy bf16 engines
    with the same weights the mean |p_rollout - p_train| is some thousandths; in float32 it is below 0.00001.

    Example: `logparity score runs/demo/rollouts --dtype float32 --entropy`.

    Args:
        rollouts: Parquet file or folder of them, or a .jsonl file.
        model: local Hugging Face folder with the weights to score under, or smollm2-135m for the embedded model.
        out: Parquet file to write; by default NAME_scored.parquet beside the input, and for a file in a run's folder
            rollouts the file of the same name in the folder scored beside it.
        entropy: also write the entropy of the full vocabulary at every response token.
        temperature: score everything at this temperature instead of the one each sequence was sampled with.
        dtype: what the model computes in.
        device: for instance cpu or cuda:1; by default CUDA where there is one.
        micro_batch_tokens: tokens computed together, padding included; less needs less memory.
        fail_above: exit with code 1 where the mean |p_rollout - p_train| over all compared tokens is above this.
        as_json: print one JSON object instead of a table.

    Returns:
        Exit code 0, or 1 where the mean difference is above --fail-above; bad input raises and ends in exit code 2.

    Raises:
        ConfigError: the temperature is not a finite number above 0.
        InputError: the input does not exist, or the output would replace it.
        MissingDependencyError: torch or transformers is not installed.
    """
    if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"--temperature: expected a finite number > 0, got {temperature}.")
    require_limit(fail_above)
    if not rollouts.exists():
        raise InputError(f"{rollouts}: expected a Parquet file or folder of rollouts, or a .jsonl file, got nothing.")
    target = score_target(rollouts, out)
    try:
        from logparity.actors import HFActor
        from logparity.models import prepare_smollm2
        from logparity.training.score_file import score_file
        from logparity.training.score_source import read_sequences

        folder = prepare_smollm2() if model == EMBEDDED_MODEL else Path(model)
        actor = HFActor(folder, dtype=dtype, device=device, micro_batch_tokens=micro_batch_tokens)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"{error.name} is not installed: pip install 'logparity[train]'.") from error
    summary = score_file(actor, read_sequences(rollouts), target, entropy=entropy, temperature=temperature)
    if as_json:
        metrics = {name: value if math.isfinite(value) else None for name, value in summary.metrics.items()}
        found = {"out": str(target), "sequences": summary.sequences, "tokens": summary.tokens, **metrics}
        sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
    else:
        _print(summary, target)
    return exit_code(summary.metrics.get("training/rollout_probs_diff_mean"), fail_above)


def _print(summary: ScoreSummary, target: Path) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    console.print(f"scored {summary.tokens:,} tokens of {summary.sequences:,} sequences into {plain(target)}")
    if summary.truncated:
        console.print(
            f"! {summary.truncated:,} sequences report log-probs renormalised after top-k, top-p or min-p; the score "
            "is over the full vocabulary, so it lies below them by the mass that was cut",
            style="yellow",
        )
    if not summary.metrics:
        console.print("the file holds no rollout log-probs: nothing to compare")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("against the rollout engine")
    table.add_column("value", justify="right")
    for name, label in _SHOWN.items():
        if name in summary.metrics:
            table.add_row(label, _number(name, summary.metrics[name]))
    console.print(table)


def _number(name: str, value: float) -> str:
    return f"{value:,.0f}" if name.endswith("tokens") else f"{value:.6g}"


__all__ = ["score"]
