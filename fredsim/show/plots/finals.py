"""How the runs of a line ended: the final values that are drawn, and the median by which lines are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fredsim.config.figures.options import SHARES
from fredsim.config.figures.quantities import of_which_less_is_better
from fredsim.runs.folder.results import Result
from fredsim.show.plots.drawing import x_of
from fredsim.show.plots.numbers import median

__all__ = [
    "cost", "counted", "final_middle", "final_values", "finals", "first_x", "goal_of", "last_rows", "note_costs",
    "note_diverged", "ranking_value", "tabulated", "why_none", "worst",
]  # fmt: skip

LAST_ROWS, LAST_SHARE = 5, 3  # at so many rows a line of one run has to be ahead, but of few rows at a third of them
#: How medians count runs that diverged, by the worst value there can be.
NOTES = {
    math.inf: "Medians count a run that diverged as infinite.",
    -math.inf: "Medians count a run that diverged as \u2212∞.",
    None: "Medians leave out runs that diverged.",
}


def worst(runs: Sequence[Result], y: str) -> float | None:
    """Return the worst y there can be: infinity, or −∞ where more is better; None if nobody knows which is better."""
    larger = {run.larger_is_better(y) for run in runs}
    if True in larger:
        return -math.inf if len(larger) == 1 else None
    known = of_which_less_is_better(y) is not None or all(y in run.own_metrics for run in runs)
    return math.inf if known else None


def note_diverged(lines: Iterable[Sequence[Result]], *columns: str) -> list[str]:
    """Return the sentence of a caption that says how medians of these columns count runs that diverged, if any did."""
    runs = [run for one in lines if len(one) > 1 for run in one]
    if not any(run.has_diverged for run in runs):
        return []
    kinds = dict.fromkeys(worst(runs, y) for y in columns)
    if {*kinds} >= {math.inf, -math.inf}:
        return ["Medians count a run that diverged as infinite, or as \u2212∞ where more is better."]
    return [NOTES[kind] for kind in kinds]


def counted(runs: Sequence[Result]) -> Sequence[Result]:
    """Return the runs of whose costs a line has the median: those that did not diverge, or all if all did."""
    return [run for run in runs if not run.has_diverged] or runs


def cost(runs: Sequence[Result], of: str) -> float:
    """Return the median x, or share of copies, at the end of the runs that count: one that diverges early is cheap."""
    last = [run.metrics.iloc[-1:] for run in counted(runs)]
    used = (end[of] / end[f"potential_{of}"].clip(lower=1) if of in SHARES else x_of(end, of) for end in last)
    return median(float(values.iloc[0]) for values in used)


def note_costs(lines: Iterable[Sequence[Result]], what: str) -> list[str]:
    """Return the sentence of a caption that says of which runs costs are, if some runs of a line diverged."""
    some = any(len(counted(runs)) < len(runs) for runs in lines)
    return [f"{what}: of the runs that did not diverge."] if some else []


def ranking_value(run: Result, y: str, least: float) -> float:
    """Return the final y of a run for comparisons: `least`, the worst, if it counts as diverged or has no final y."""
    value = run.final(y)
    return least if value is None or run.has_diverged or math.isnan(value) else value


def finals(runs: Sequence[Result], y: str) -> list[float]:
    """Return the final y of each run for comparisons: the worst there can be of one that counts as diverged.

    Where nobody knows what is worst, such runs are left out.
    """
    least = worst(runs, y)
    if least is None:
        ends = [ranking_value(run, y, math.nan) for run in runs]
        return [value for value in ends if not math.isnan(value)]
    return [ranking_value(run, y, least) for run in runs]


def final_middle(runs: Sequence[Result], y: str) -> float | None:
    """Return the median of `finals`; None if it is not finite, as where half of the runs diverged."""
    found = finals(runs, y)
    middle = median(found) if found else math.nan
    return middle if math.isfinite(middle) else None


def last_rows(runs: Sequence[Result], y: str) -> list[float]:
    """Return the last values of y, by which a line of one run is compared, if that did not diverge; of others none."""
    (run, *more) = runs
    values = [] if more or run.has_diverged else run.metrics[y].dropna().tolist()
    return values[-max(1, min(LAST_ROWS, len(values) // LAST_SHARE)) :]


def goal_of(runs: Iterable[Result], y: str) -> float | None:
    """Return the value of y, a column of theirs, at which all of these runs stop, by `until`; None if they do not.

    Such runs are not compared by how they ended, which is how far they overshoot, but by when they are there.
    """
    goals = {(run.config.get("until") or {}).get(y) if y in run.metrics else None for run in runs}
    goal = goals.pop() if len(goals) == 1 else None
    return None if goal is None else float(goal)


def first_x(run: Result, x: str, y: str, value: float) -> float:
    """Return the x at which a run first has this value of y, or a better one; infinity if it never has."""
    rows = run.first_row(y, value)
    return float(x_of(rows, x).iloc[0]) if len(rows) else math.inf


def why_none(runs: Iterable[Result]) -> str:
    """Return what stands in the place of a line's final value where it has none."""
    return "diverged" if any(run.has_diverged for run in runs) else "none"


def tabulated(runs: Sequence[Result], y: str) -> float | None:
    """Return the final y of a line for tables: `final_middle`; where all runs diverged, what they ended with."""
    if all(run.has_diverged for run in runs):
        final = final_values(runs, y)
        return median(final) if final else None
    return final_middle(runs, y)


def final_values(runs: Iterable[Result], y: str) -> list[float]:
    """Return the final y of each run that does not count as diverged; a run that has none is left out.

    If all of them count as diverged, return the final values of those that ended, NaN and infinity included.
    """
    final = [(run, value) for run in runs if (value := run.final(y)) is not None]
    good = [value for run, value in final if not run.has_diverged and math.isfinite(value)]
    ended = [value for run, value in final if run.not_finite]
    if good or all(map(math.isfinite, ended)):
        return good or ended
    return ended[:1] if len({*ended}) == 1 else [math.nan]
