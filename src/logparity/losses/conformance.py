"""How each loss compares with other frameworks; written out as docs/losses.md.

Defaults and sources are read from the configs themselves, so that the page cannot drift from the code.

    python -m logparity.losses.conformance docs/losses.md
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from logparity.losses.host_notes import HOSTS, NOTES

_INTRODUCTION = """# Losses, corrections, and advantages

*Generated from `logparity.losses.conformance`; change the table there, then run
`python -m logparity.losses.conformance docs/losses.md`.*

Symbols: `lp` log-prob of the token under the policy that is trained, `old` under the policy before the update,
`ref` under the reference, `roll` as the rollout engine reported it, all in nats; `A` advantage; `r = exp(lp - old)`;
`w = exp(old - roll)`; `sg` stops the gradient; means over active tokens unless said otherwise.

What holds for every entry: inactive tokens are selected out before any arithmetic; the exponent of a ratio is clamped
to +-20 and clamped tokens are counted; a NaN or infinity on an active token is left out of the numerators and counted,
or raised with its sample and position (`strict=True`); advantages, returns, and whitening return no metrics to count
it in, so they always raise, on every rank that works together; old, reference, and rollout log-probs and advantages
receive no gradient; numerators are local sums and denominators are counts over the
whole step, so the losses, gradients, and metrics of micro-batches and ranks add up to those of the whole; a micro-batch
that holds more than the denominators say is an error on the CPU and a NaN loss elsewhere, where looking would wait.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the page.

    Args:
        title: heading.
        key: name under which `host_notes` holds the differences.
        formula: per token, unless it says otherwise.
        symbols: our functions and configs; defaults and sources are read from these.
    """

    title: str
    key: str
    formula: str
    symbols: tuple[Callable[..., Any], ...]


def entries() -> tuple[Entry, ...]:
    """The table, in the order of the page."""
    # Imported here: this package's __init__ must not import the table that describes it.
    from logparity import losses as ours

    return (
        Entry(
            "PPO / GRPO clip, DAPO clip-higher, dual clip",
            "clip",
            "max(-r A, -clamp(r, 1 - clip_low, 1 + clip_high) A);  A < 0: at most -dual_clip A",
            (ours.ClipConfig, ours.clip_loss),
        ),
        Entry(
            "GSPO",
            "gspo",
            "s = exp(mean over the sequence of lp - old);  the clip above with r = sg(s) exp(lp - sg(lp))",
            (ours.GSPOConfig, ours.gspo_loss),
        ),
        Entry("CISPO", "cispo", "-sg(clamp(r, 1 - clip_low, 1 + clip_high)) A lp", (ours.CISPOConfig, ours.cispo_loss)),
        Entry("REINFORCE", "reinforce", "-A lp", (ours.ReinforceConfig, ours.reinforce_loss)),
        Entry(
            "OPSM: off-policy sequence masking",
            "opsm",
            "drop tokens with A < 0 of sequences with mean(old - lp) > threshold",
            (ours.OPSMConfig, ours.opsm_keep),
        ),
        Entry(
            "KL term",
            "kl",
            "d = lp - ref;  k1 = d;  k2 = d^2 / 2;  k3 = min(exp(-d) - 1 + d, 10);  unbiased: times r, with gradient",
            (ours.KLConfig, ours.kl_loss),
        ),
        Entry("Entropy bonus", "entropy", "-coefficient H", (ours.EntropyConfig, ours.entropy_loss)),
        Entry(
            "Value",
            "value",
            "coefficient max((v - R)^2, (clamp(v, v_old - clip, v_old + clip) - R)^2)",
            (ours.ValueConfig, ours.value_loss),
        ),
        Entry("SFT", "sft", "-lp, at temperature 1", (ours.SFTObjective, ours.sft_loss)),
        Entry(
            "Reductions",
            "reduction",
            "token_mean: sum / tokens;  sequence_mean_token_mean: sum over sequences of their means / sequences;"
            "  sequence_mean_token_sum: sum / sequences;  fixed_length: sum / (sequences length)",
            (ours.ReductionConfig, ours.reduce_tokens),
        ),
        Entry(
            "Off-policy correction: TIS, IcePop, MIS",
            "correction",
            "token w, sequence exp(sum(old - roll)), or geometric exp(mean(old - roll));  truncate: min(w, high);"
            "  clip: clamp(w, low, high);  mask: w inside [low, high], else 0;  batch_normalise: divided by their mean",
            (ours.CorrectionConfig, ours.correct),
        ),
        Entry(
            "Rejection and veto",
            "rejection",
            "keep where low <= ratio(level) <= high;  veto: drop a sequence with any token of w < token_veto",
            (ours.RejectionConfig, ours.correct),
        ),
        Entry(
            "GRPO and Dr. GRPO advantages",
            "grpo",
            "(reward - mean) / (std + epsilon) within the group;  Dr. GRPO: reward - mean;  group of one: 0",
            (ours.grpo_advantages,),
        ),
        Entry("RLOO advantages", "rloo", "reward - mean reward of the group's others", (ours.rloo_advantages,)),
        Entry(
            "REINFORCE++ and its baseline",
            "reinforce_plus_plus",
            "whiten(discounted returns);  baseline: whiten(reward - mean of the group)",
            (ours.reinforce_plus_plus_advantages, ours.reinforce_plus_plus_baseline_advantages),
        ),
        Entry(
            "GAE",
            "gae",
            "A_t = sum_k (gamma lam)^k (r_{t+k} + gamma v_{t+k+1} - v_{t+k}), over active tokens;  returns A + v",
            (ours.gae,),
        ),
        Entry("Whitening", "whiten", "(x - mean) / sqrt(var + epsilon), var over n - 1", (ours.whiten,)),
    )


def render() -> str:
    """The page as Markdown."""
    return "\n".join([_INTRODUCTION, _hosts(), *map(_section, entries())])


def _hosts() -> str:
    lines = ["## What was compared, and how", "", "| framework | version | how |", "|---|---|---|"]
    lines += [f"| {host.name} | {host.version} | {host.evidence} |" for host in HOSTS]
    return "\n".join(
        [*lines, "", "Where a framework is not listed under an entry, that entry was not checked against it.", ""]
    )


def _section(entry: Entry) -> str:
    lines = [f"## {entry.title}", "", "```", *entry.formula.split(";  "), "```", ""]
    lines.append("Ours: " + ", ".join(f"`{symbol.__name__}`" for symbol in entry.symbols))
    defaults = [text for symbol in entry.symbols for text in _defaults(symbol)]
    if defaults:
        lines += ["", "Defaults: " + ", ".join(f"`{text}`" for text in defaults)]
    sources = dict.fromkeys(text for symbol in entry.symbols if (text := _source(symbol)))
    lines += [line for text in sources for line in ("", f"Source: {text}")]
    notes = NOTES.get(entry.key, {})
    if notes:
        lines += ["", "| framework | its name | difference from ours |", "|---|---|---|"]
        lines += [f"| {host} | {name} | {difference} |" for host, (name, difference) in notes.items()]
    return "\n".join([*lines, ""])


def _defaults(symbol: Callable[..., Any]) -> list[str]:
    if is_dataclass(symbol):
        return [f"{item.name}={_show(_default_of(item))}" for item in fields(symbol)]
    options = inspect.signature(symbol).parameters.values()
    return [f"{item.name}={item.default}" for item in options if item.default not in (inspect.Parameter.empty, None)]


def _default_of(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _show(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return f"{type(value).__name__}()" if is_dataclass(value) else str(value)


def _source(symbol: Callable[..., Any]) -> str | None:
    found = re.search(r"^Source: (.*)\Z", inspect.getdoc(symbol) or "", re.MULTILINE | re.DOTALL)
    return None if found is None else " ".join(found.group(1).split())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
