"""Write golden values of the real verl's ``rollout_corr/*`` metrics.

Run from the repository root in the environment that ``make test-verl`` sets up:

    .venv-verl/bin/python tests/probe/golden/make_golden.py

verl's own functions, unchanged, on float64 tensors whose values are float32.
"""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path

import torch
from verl.trainer.ppo.rollout_corr_helper import (
    compute_offpolicy_metrics,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)

LENGTHS, WIDTH = (7, 12, 1, 30, 18, 5), 32
CAP = math.exp(20)
"""No ratio of the sound batch comes near it: truncation leaves every weight as it is."""


def batch(noise: float = 0.4) -> dict[str, torch.Tensor]:
    """Ragged rows with a gap of tool tokens, and ratios on both sides of 0.5, 2 and 5."""
    generator = torch.Generator().manual_seed(11)
    old = -torch.randn(len(LENGTHS), WIDTH, generator=generator).abs() - 0.05
    rollout = (old + noise * torch.randn(old.shape, generator=generator)).clamp(max=0)
    rollout[0] = (old[0] - 1).clamp(max=0)  # mean L of 1: outside the sequence bounds
    rollout[3, 7], rollout[4, 2] = old[3, 7] - 2.5, old[4, 2] - 1.2
    mask = torch.tensor([[j < length for j in range(WIDTH)] for length in LENGTHS])
    mask[3, 10:14] = False
    return {"old": old, "rollout": rollout, "mask": mask}


def cases() -> dict[str, dict[str, torch.Tensor]]:
    """A batch where verl is right, and one for each place where it is not."""
    empty = batch()
    empty["mask"][1] = False
    outlier = batch()
    outlier["old"][3, 3], outlier["rollout"][3, 3] = -0.5, -30.5
    long = batch()
    long["old"][5], long["rollout"][5] = -40.0, -39.0
    missing = batch()
    missing["rollout"][4, 4] = math.nan
    impossible = batch()
    impossible["old"][4, 4] = -math.inf
    return {
        "sound": batch(), "empty row": empty, "ratio beyond e^20": outlier, "perplexity beyond e^20": long,
        "a NaN": missing, "probability 0": impossible,
    }  # fmt: skip


def verl_metrics(old: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """What verl reports for a batch, under its own names."""
    old, rollout, mask = old.double(), rollout.double(), mask.double()
    found = compute_offpolicy_metrics(old, rollout, mask)
    _, weights = compute_rollout_correction_weights(old - rollout, mask, "token", CAP)
    found |= {name: weights[name] for name in ("rollout_is_mean", "rollout_is_std", "rollout_is_min", "rollout_is_max")}
    found["rollout_is_eff_sample_size"] = weights["rollout_is_eff_sample_size"]
    _, icepop = compute_rollout_correction_weights(old - rollout, mask, "token", "0.5_5.0")
    found["rollout_is_oob_ratio"] = icepop["rollout_is_oob_ratio"]
    for option, bounds in (("seq_mean_k1", "0.5_2.0"), ("token_k1", "0.5_5.0"), ("token_k1", "0.2_2.0")):
        _, rejected = compute_rollout_rejection_mask(old - rollout, mask, option, bounds)
        found[f"{option}/{bounds}/rollout_rs_masked_fraction"] = rejected["rollout_rs_masked_fraction"]
    return found


def plain(value: float) -> float | str:
    """JSON has no word for what is not finite."""
    return value if math.isfinite(value) else str(value)


def main() -> None:
    """Write the file beside this script."""
    content = {"versions": {name: version(name) for name in ("verl", "torch")}, "cases": {}}
    for name, tensors in cases().items():
        inputs = {key: [[plain(x) for x in row] for row in tensor.tolist()] for key, tensor in tensors.items()}
        content["cases"][name] = {
            "inputs": inputs,
            "verl": {key: plain(value) for key, value in verl_metrics(**tensors).items()},
        }
    text = json.dumps(content, separators=(",", ":"))
    Path(__file__).with_name("rollout_corr.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
