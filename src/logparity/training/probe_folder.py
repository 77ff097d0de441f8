"""Where the probe's per-token files go, and that they are of one run."""

from __future__ import annotations

from pathlib import Path

from logparity.errors import ConfigError
from logparity.training.config import TrainConfig


def probe_folder(config: TrainConfig) -> Path | None:
    """The probe's folder, with ``{run}`` standing for the run folder; None where it writes no files."""
    if config.probe.save_dir is None:
        return None
    return Path(str(config.probe.save_dir).replace("{run}", str(config.run.folder)))


def require_own_folder(config: TrainConfig) -> None:
    """Refuse to mix a new run's files with those of another one.

    Args:
        config: resolved configuration of a run that is not resumed.

    Raises:
        ConfigError: the folder lies outside the run folder and holds per-token files already.
    """
    folder = probe_folder(config)
    if not config.probe.enabled or folder is None or folder.resolve().is_relative_to(config.run.folder.resolve()):
        return
    if any(folder.glob("prob_diff*.npy")):
        raise ConfigError(
            f"probe.save_dir {folder}: holds per-token files of another run. Set probe.save_dir to "
            "'{run}/prob_diff', which is a folder inside the run folder, or to another folder."
        )
