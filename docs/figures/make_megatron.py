"""Draw docs/figures/megatron.png: who computes what in the Megatron actor. ``python docs/figures/make_megatron.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

INK, SOFT = "#1b1f24", "#57606a"
STAGE, HEAD, LEFT, RIGHT, PLAIN = "#dbe7f5", "#f7e3c8", "#cfe8d5", "#e6d9f2", "#f3f4f6"


def box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, color: str) -> None:
    """A labelled box."""
    axes.add_patch(Rectangle(corner, *size, facecolor=color, edgecolor=INK, linewidth=0.8))
    middle = (corner[0] + size[0] / 2, corner[1] + size[1] / 2)
    axes.text(*middle, text, ha="center", va="center", fontsize=8, color=INK, linespacing=1.35)


def note(axes: Axes, x: float, y: float, text: str, color: str = SOFT, va: str = "top") -> None:
    """Small text, centred on ``x``."""
    axes.text(x, y, text, ha="center", va=va, fontsize=7.5, color=color, linespacing=1.3)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
    """An arrow with text above it."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=SOFT, linewidth=1.0))
    note(axes, (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.15, text, va="bottom")


def main() -> None:
    """Draw and save."""
    figure, axes = plt.subplots(figsize=(10.4, 3.9), dpi=160)
    axes.set_xlim(0, 20.8)
    axes.set_ylim(0.9, 8.7)
    axes.axis("off")
    replica = (
        "DP: each replica (dashed) takes whole sequences, shared out by tokens.  EP: its ranks hold different experts."
    )
    axes.text(0.1, 8.25, replica, fontsize=8.5, color=SOFT)
    axes.add_patch(Rectangle((0.1, 1.0), 20.6, 7.0, fill=False, edgecolor=SOFT, linewidth=0.8, linestyle=(0, (4, 3))))
    box(axes, (0.4, 4.2), (2.2, 2.0), "stage 0:\nembedding,\nfirst layers", STAGE)
    box(axes, (4.4, 4.2), (2.2, 2.0), "last stage:\nlast layers,\nLM head", HEAD)
    arrow(axes, (2.6, 5.2), (4.4, 5.2), "PP sends bf16\n[T/CP, H]")
    note(axes, 3.5, 3.8, "TP: every matrix is shared out,\nSP: the norms' activations as well")
    arrow(axes, (6.6, 5.2), (8.5, 5.2), "fp32_output\n= False")
    for row, (name, color) in enumerate((("CP 0", LEFT), ("CP 1", RIGHT), ("CP 1", RIGHT), ("CP 0", LEFT))):
        for column in range(2):
            box(axes, (8.5 + 1.4 * column, 6.05 - 0.95 * row), (1.4, 0.95), "", color)
        axes.text(11.4, 6.5 - 0.95 * row, name, fontsize=7.5, color=SOFT, va="center")
    note(axes, 9.2, 7.1, "TP 0", va="bottom")
    note(axes, 10.6, 7.1, "TP 1", va="bottom")
    logits = "logits in model precision,\n[T/CP, V/TP] on each rank,\ngone after its micro-batch"
    note(axes, 9.9, 3.0, logits, INK)
    arrow(axes, (12.1, 5.2), (13.6, 5.2), "rows upcast\nin chunks")
    box(axes, (13.6, 4.3), (2.9, 1.8), "block statistics,\none all-gather\nover TP", PLAIN)
    arrow(axes, (16.5, 5.2), (17.4, 5.2))
    box(axes, (17.4, 4.3), (3.0, 1.8), "log_probs, entropy:\nfp32 [n] of this\nrank's tokens", PLAIN)
    arrow(axes, (18.9, 4.3), (18.9, 3.1))
    ends = (
        "score: all-reduce over DP x CP, broadcast over PP\n"
        "train: loss = local sum / count of the whole step;\ngradients are summed over DP x CP"
    )
    box(axes, (13.6, 1.3), (6.8, 1.8), ends, PLAIN)
    figure.tight_layout(pad=0.3)
    figure.savefig(Path(__file__).with_name("megatron.png"), facecolor="white")


if __name__ == "__main__":
    main()
