"""Draw ``phenomenon.png``: two engines with the same weights give the same tokens different probabilities.

The dump holds 2,099 response tokens of a 135M model, sampled by vLLM in bf16 (CPU, temperature 1) and scored again by
Transformers in bf16. Run ``python docs/figures/make_phenomenon.py``; it needs ``logparity[plot]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "tests" / "data" / "pairs" / "clean_vllm_bf16_vs_hf_bf16.npz"
INK, SOFT, BLUE, ORANGE = "#1b2028", "#5c6572", "#3b7dd8", "#d9692b"


def main() -> None:
    """Read the dump, draw both panels, write the PNG beside this script."""
    dump = np.load(DUMP, allow_pickle=False)
    mask = dump["response_mask"].astype(bool)
    rollout, train = (np.exp(dump[name]) for name in ("rollout_log_probs", "old_log_probs"))
    figure = Figure(figsize=(11, 4.5), dpi=160, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.55])
    draw_tokens(left, rollout[mask], train[mask])
    draw_response(right, (train - rollout), mask)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#b5bbc4")
        axis.tick_params(colors=SOFT, labelsize=9)
    figure.savefig(Path(__file__).with_name("phenomenon.png"))


def draw_tokens(axis: Any, rollout: NDArray[Any], train: NDArray[Any]) -> None:
    """Every token: its probability in the rollout engine against that in the trainer."""
    gap = np.abs(train - rollout)
    far = gap > 0.05
    axis.plot([0, 1], [0, 1], color="#b5bbc4", linewidth=1, zorder=0)
    axis.scatter(rollout[~far], train[~far], s=7, color=BLUE, alpha=0.35, linewidths=0)
    axis.scatter(rollout[far], train[far], s=16, color=ORANGE, alpha=0.9, linewidths=0)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.set_xlabel("probability in the rollout engine (vLLM, bf16)", color=SOFT)
    axis.set_ylabel("probability in the trainer (Transformers, bf16)", color=SOFT)
    axis.set_title(f"Same weights, {len(gap):,} tokens, two answers", loc="left", color=INK, weight="bold", fontsize=11)
    mean = f"mean gap {gap.mean():.4f}\nlargest {gap.max():.2f}"
    axis.text(0.04, 0.96, mean, transform=axis.transAxes, va="top", color=INK, fontsize=10)
    axis.text(
        0.04,
        0.81,
        f"{far.sum()} tokens off by\nmore than 0.05",
        transform=axis.transAxes,
        va="top",
        color=ORANGE,
        fontsize=10,
    )


def draw_response(axis: Any, difference: NDArray[Any], mask: NDArray[Any]) -> None:
    """The full-length response with the largest mean gap, token by token."""
    lengths = mask.sum(axis=1)
    mean_gap = np.where(mask, np.abs(difference), 0).sum(axis=1) / lengths
    row = int(np.argmax(np.where(lengths == lengths.max(), mean_gap, -1)))
    values = difference[row, mask[row]]
    axis.axhline(0, color="#b5bbc4", linewidth=1, zorder=0)
    axis.bar(np.arange(len(values)), values, width=0.75, color=np.where(np.abs(values) > 0.05, ORANGE, BLUE))
    reach = float(np.abs(values).max()) * 1.15
    axis.set(xlim=(-1, len(values)), ylim=(-reach, reach))
    axis.set_xlabel("position in the response", color=SOFT)
    axis.set_ylabel("train - rollout probability", color=SOFT)
    axis.set_title("One response, token by token", loc="left", color=INK, weight="bold", fontsize=11)
    axis.text(
        0.995,
        0.97,
        "the trainer finds the token more likely",
        transform=axis.transAxes,
        ha="right",
        va="top",
        color=SOFT,
        fontsize=9,
    )
    axis.text(
        0.995,
        0.03,
        "less likely than the engine that sampled it",
        transform=axis.transAxes,
        ha="right",
        color=SOFT,
        fontsize=9,
    )


if __name__ == "__main__":
    main()
