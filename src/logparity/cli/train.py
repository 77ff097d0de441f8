"""``logparity train``: run the training loop that a TOML file describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from logparity.cli.progress import TerminalView
from logparity.errors import ConfigError, MissingDependencyError
from logparity.training.config import TrainConfig, load_config
from logparity.training.run_folder import Existing


def train(
    config: Path,
    /,
    *,
    settings: Annotated[TrainConfig | None, Parameter(name="*")] = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    resume: Annotated[bool, Parameter(negative="")] = False,
    overwrite: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train a policy with GRPO or another algorithm; with probe.enabled, compare both sides on every step.

    Settings come from CONFIG (TOML); any of them can be given as a flag, which wins over the file:

        logparity train examples/grpo_cpu.toml --run.steps 20 --probe.save-dir runs/x/prob_diff

    The run folder receives metrics.jsonl, rollouts/, prob_diff/, checkpoints/ and report.html. Ctrl-C finishes the
    step and saves; go on with --resume.

    Args:
        config: TOML file.
        settings: any setting of the configuration.
        dry_run: print the resolved configuration and stop.
        resume: go on from the newest checkpoint of an existing run folder.
        overwrite: replace an existing run folder.

    Returns:
        Exit code.
    """
    overrides = settings.model_dump(exclude_unset=True) if settings else {}
    resolved = load_config(config, overrides)
    if dry_run:
        Console().print_json(json.dumps(resolved.model_dump(mode="json")))
        return 0
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite: expected at most one of them.")
    existing = Existing.RESUME if resume else Existing.OVERWRITE if overwrite else Existing.REFUSE
    try:
        from logparity.training.loop import run_training
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"logparity train needs {error.name}: pip install 'logparity[train]'.") from error
    with TerminalView() as view:
        finished = run_training(resolved, existing, view)
    return 0 if finished else 130
