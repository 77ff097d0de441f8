"""The numbers that a reader sees first, and one sentence that places them."""

from __future__ import annotations

from dataclasses import dataclass

from logparity.report.numbers import number
from logparity.report.run_folder import RunFolder
from logparity.report.token_survey import TokenSurvey


@dataclass(frozen=True, slots=True)
class Headline:
    """One number at the top of the page."""

    label: str
    value: str
    note: str = ""
    alarming: bool = False


def headlines(run: RunFolder, survey: TokenSurvey) -> list[Headline]:
    """The numbers at the top of the page, as far as the run has them."""
    numbers: list[Headline] = []
    reward = run.series("reward/mean")
    if reward:
        first, last = (sum(part) / len(part) for part in (reward[1][:3], reward[1][-3:]))
        numbers.append(Headline("mean reward", f"{first:.3g} → {last:.3g}", "first three → last three steps"))
    if run.analysis and run.analysis.summary.moments.count:
        summary = run.analysis.summary
        numbers += [
            Headline("mean |Δp|", number(summary.moments.mean), "over all tokens of all steps"),
            Headline("99th percentile", number(summary.percentiles[99]), "1 token in 100 is above"),
            Headline("largest |Δp|", number(summary.moments.maximum), "of a single token"),
        ]
    pearson = run.series("training/rollout_actor_probs_pearson_corr")
    if pearson:
        numbers.append(Headline("Pearson", f"{pearson[1][-1]:.5f}", "of both probabilities, last step"))
    compared = survey.compared or (run.analysis.summary.moments.count if run.analysis else 0)
    excluded = survey.excluded or (run.analysis.summary.not_finite if run.analysis else 0)
    numbers.append(
        Headline("tokens compared", f"{compared:,}", f"{excluded:,} without a usable log-prob", excluded > 0)
    )
    return numbers


def reading(run: RunFolder) -> str:
    """One sentence that places the mean ``|dp|``; empty where there is none."""
    if run.analysis is None or not run.analysis.summary.moments.count:
        return ""
    mean = run.analysis.summary.moments.mean
    if mean < 0.005:
        band = "below 0.005, which verl's guide calls normal for two engines with the same weights"
    elif mean <= 0.01:
        band = "between 0.005 and 0.01, the upper end of what two bf16 engines with the same weights show"
    else:
        band = "above 0.01, where verl's guide sees a problem unless one side runs in FP8 or is quantised"
    return f"The mean difference is {number(mean)}: {band}. It matters as much that it does not grow from step to step."


__all__ = ["Headline", "headlines", "reading"]
