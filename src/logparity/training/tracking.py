"""Where metrics go: metrics.jsonl always, TensorBoard and Weights & Biases on request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from logparity.errors import MissingDependencyError
from logparity.probe.atomic import atomic_file
from logparity.training.config import TrackingConfig


class Tracker(Protocol):
    """Takes the metrics of one step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record finite metrics under a step number."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class JsonlTracker:
    """Appends one JSON object per step to a file.

    Args:
        path: the file.
        last_step: steps above it are dropped from an existing file, and so is a line cut short by a crash.
    """

    def __init__(self, path: Path, last_step: int = 0) -> None:
        kept = [line for line in _lines(path) if _step_of(line) <= last_step]
        with atomic_file(path) as file:
            file.write("".join(line + "\n" for line in kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line; keys are sorted so that equal runs have equal files."""
        self._file.write(json.dumps({"step": step, **dict(sorted(metrics.items()))}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardTracker:
    """Writes TensorBoard event files.

    Args:
        folder: where they go.
        last_step: later steps of an earlier attempt are purged.

    Raises:
        MissingDependencyError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, last_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise MissingDependencyError(
                "tracking.tensorboard needs TensorBoard: pip install 'logparity[tensorboard]'."
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=last_step + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbTracker:
    """Logs to Weights & Biases.

    Args:
        folder: the run folder; W&B keeps its files in it.
        project: project name.
        config: resolved configuration.

    Raises:
        MissingDependencyError: wandb is not installed.
    """

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingDependencyError("tracking.wandb needs wandb: pip install 'logparity[wandb]'.") from None
        self._run = wandb.init(
            project=project, name=folder.name, id=folder.name, resume="allow", dir=str(folder), config=dict(config)
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


class Trackers:
    """Several trackers as one; only finite numbers reach them, the rest are counted.

    Args:
        trackers: where metrics go.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the finite metrics on, with ``metrics/non_finite``: how many were not."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        finite["metrics/non_finite"] = float(len(metrics) - len(finite))
        for tracker in self._trackers:
            tracker.log(step, finite)

    def close(self) -> None:
        """Close every tracker."""
        for tracker in self._trackers:
            tracker.close()


def open_trackers(
    config: TrackingConfig, root: Path, metrics: Path, last_step: int, resolved: Mapping[str, Any]
) -> Trackers:
    """Open the trackers that a configuration asks for.

    Args:
        config: which trackers.
        root: run folder.
        metrics: path of metrics.jsonl.
        last_step: last step that the run resumes behind; 0 at the start.
        resolved: resolved configuration, shown by W&B.

    Returns:
        All of them as one.
    """
    trackers: list[Tracker] = [JsonlTracker(metrics, last_step)]
    if config.tensorboard:
        trackers.append(TensorBoardTracker(root / "tensorboard", last_step))
    if config.wandb:
        trackers.append(WandbTracker(root, config.wandb_project, resolved))
    return Trackers(trackers)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _step_of(line: str) -> float:
    """Step number of a line; infinite where the line is not a whole JSON object."""
    with suppress(ValueError, KeyError, TypeError):
        return int(json.loads(line)["step"])
    return math.inf
