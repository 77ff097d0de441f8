"""Model folders on disk: checking them, loading them, and the embedded 135M model."""

from __future__ import annotations

from logparity.models.folder import ModelFolder, check_model_folder
from logparity.models.smollm2 import prepare_smollm2

__all__ = ["ModelFolder", "check_model_folder", "prepare_smollm2"]
