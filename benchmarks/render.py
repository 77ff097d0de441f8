"""The table and the plots of the docs, drawn from the JSON of a run. ``python -m benchmarks.render``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.cases import Mode

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MIB = 2**20
OURS, PEER = "#0b6e4f", "#9aa5b1"

Row = dict[str, Any]


def render(results: Path, docs: Path = DOCS) -> None:
    """Rewrite the marked parts of docs/benchmarks.md and the figures beside it."""
    page = docs / "benchmarks.md"
    text = page.read_text()
    for name, case in json.loads(results.read_text()).items():
        text = replace_marked(text, name, section(case))
        draw(case["rows"], case["shape"], docs / "figures" / f"log_probs_{name}.png")
    page.write_text(text)


def section(case: Row) -> str:
    """What stands between a case's markers: where it was measured, and the table."""
    return f"{machine_line(case['machine'])}\n\n{markdown_table(case['rows'])}"


def replace_marked(text: str, name: str, body: str) -> str:
    """Put ``body`` between the markers of ``name``; a page without them is an error, not a silent no-op."""
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no '<!-- generated: {name} -->' ... '<!-- end -->' to write the results into")
    return pattern.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text)


def machine_line(machine: Row) -> str:
    """One sentence on where the numbers come from."""
    return (
        f"Measured on {machine['cpu']}, {machine['threads']} thread(s), {machine['capability']}, "
        f"torch {machine['torch']}, {machine['clock']} time; "
        f"load average {machine['load_before']:.1f} before the run, which took {machine['minutes']} minutes."
    )


def cell(row: Row | None) -> str:
    """``median x (spread) / MiB`` of one contender in one mode, or why there is none."""
    if row is None:
        return ""
    if "failed" in row:
        return "does not run"
    memory = row["peak_bytes"] / MIB
    size = f"{memory:,.0f} MiB" if memory >= 10 else f"{memory:.1f} MiB"
    if "ratio_median" not in row:
        return size
    spread = f" ({row['ratio_min']:.3g}-{row['ratio_max']:.3g})" if row["ratio_min"] < row["ratio_max"] else ""
    return f"{row['ratio_median']:.3g}x{spread} / {size}"


def _names(rows: Iterable[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["contender"], row["origin"]) for row in rows))


def markdown_table(rows: list[Row]) -> str:
    """One line a contender, one column a mode, the worst error, and below it the reasons of what does not run."""
    modes = [mode.value for mode in Mode if any(row["mode"] == mode.value for row in rows)]
    found = {(row["contender"], row["origin"], row["mode"]): row for row in rows}
    timed = any("max_error" in row for row in rows)
    head = ["implementation", "from", *modes, *(["worst error of a log-prob"] if timed else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, origin in _names(rows):
        cells = [cell(found.get((name, origin, mode))) for mode in modes]
        if timed:
            errors = [
                row["max_error"] for key, row in found.items() if key[:2] == (name, origin) and "max_error" in row
            ]
            cells.append(f"{max(errors):.1e}" if errors else "")
        shown = f"**{name}**" if origin == "logparity" else name
        lines.append("| " + " | ".join([shown, origin, *cells]) + " |")
    reasons = {(row["contender"], row["origin"]): row["failed"] for row in rows if "failed" in row}
    lines += [f"\n{name} ({origin}) does not run here: `{reason}`" for (name, origin), reason in reasons.items()]
    return "\n".join(lines)


def draw(rows: list[Row], shape: Row, path: Path) -> None:
    """Bars of time and memory for forward and backward; ours in colour."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [r for r in rows if r["mode"] == Mode.BACKWARD.value and "peak_bytes" in r][::-1]
    timed = any("ratio_median" in row for row in shown)
    figure, axes = plt.subplots(
        1, 2 if timed else 1, sharey=True, figsize=(10 if timed else 7, 0.45 * len(shown) + 1.4), squeeze=False
    )
    labels = [f"{row['contender']} ({row['origin']})" for row in shown]
    colours = [OURS if row["origin"] == "logparity" else PEER for row in shown]
    unit = "matmul" if shape["hidden"] else "bare read"
    panels = [("extra memory, MiB", [max(row["peak_bytes"] / MIB, 0.1) for row in shown])]
    if timed:
        panels.append((f"time, multiples of a {unit}", [row.get("ratio_median", 0) for row in shown]))
    for axis, (title, values) in zip(axes[0], panels, strict=True):
        bars = axis.barh(labels, values, color=colours)
        axis.bar_label(
            bars, [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values], padding=3, fontsize=8
        )
        axis.set_xticks([])  # every bar says its number
        axis.set_title(title, fontsize=9, loc="left")
        axis.margins(x=0.15)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.tick_params(labelsize=8, length=0)
    size = f"T={shape['tokens']}, V={shape['vocab']}" + (f", H={shape['hidden']}" if shape["hidden"] else "")
    figure.suptitle(f"Forward and backward, bf16, {size}", fontsize=10, x=0.01, ha="left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    render(ROOT / "benchmarks" / "results" / "log_probs.json")
