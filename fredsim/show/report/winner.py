"""Who won: the line whose runs ended with the smallest error, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fredsim.show.plots.drawing import default_y
from fredsim.show.plots.finals import ranking_value, why_none
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.numbers import median
from fredsim.show.tables import Table, short

__all__ = ["Standing", "standings", "verdict", "winner_table", "winners"]

MOST_ROWS = 5
NOUNS = {
    "validation_error": "final validation error", "gap": "final gap to the optimum",
    "validation_loss": "final validation loss",
}  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """A line, the number of its panel, and the final values of its runs: the worst for each that diverged."""

    panel: int
    line: Line
    name: str
    values: list[float]
    largest: bool
    """Whether more is better."""

    @property
    def key(self) -> float:
        """What is the smaller, the better the line is."""
        return -self.middle if self.largest else self.middle

    @property
    def middle(self) -> float:
        """The median of the final values; not finite if half of the runs diverged."""
        return median(self.values)


def standings(panels: Sequence[Panel]) -> tuple[str, list[Standing]]:
    """Return the column by which lines are compared, and the lines of all panels, the best median first.

    The column is the error or the gap; the loss if no answer is right or wrong. Equal lines are in their order.
    """
    every = [run for panel in panels for run in panel.runs]
    y = default_y(every)
    if not any("problem" in run.config or ranking_value(run, y, math.inf) < math.inf for run in every):
        y = "validation_loss"
    largest = all(run.larger_is_better(y) for run in every)
    least = -math.inf if largest else math.inf
    found = []
    for number, panel in enumerate(panels):
        for line in panel.lines:
            name = ", ".join(filter(None, (line.label, panel.title)))
            found.append(Standing(number, line, name, [ranking_value(run, y, least) for run in line.runs], largest))
    return y, sorted(found, key=lambda one: one.key)


def winners(panels: Sequence[Panel]) -> list[Standing]:
    """Return the lines of the best median, which are several in a tie; none if no line has a median."""
    first, *rest = standings(panels)[1]
    return [] if math.isinf(first.middle) else [first, *(one for one in rest if one.middle == first.middle)]


def _ahead(first: Standing, second: Standing) -> tuple[float, int]:
    """Return in how many pairs of their runs the first is ahead, and how many there are; equal values count half."""
    pairs = [(a, b) for a in first.values for b in second.values]
    sign = -1 if first.largest else 1
    return sum((sign * a < sign * b) + (a == b) / 2 for a, b in pairs), len(pairs)


def verdict(panels: Sequence[Panel]) -> str:
    """Return who won in a sentence or two, and how sure that is; of a single line, how it ended."""
    measure, found = standings(panels)
    noun = NOUNS.get(measure, f"final {measure}")
    first, *rest = found
    extreme = "largest" if first.largest else "smallest"
    if math.isinf(first.middle):
        return f"No line has a {noun}: half of the runs or more diverged, or have none."
    if not rest:
        return f"{first.name}: {noun} {_spread(first)}."
    equal = [one for one in rest if one.middle == first.middle]
    if equal:
        names = " and ".join(one.name for one in (first, *equal)[:3])
        more = f" (and {len(equal) - 2} more)" if len(equal) > 2 else ""
        return f"A tie: {names}{more} have the same {noun}, {_spread(first)}, the {extreme} of {len(found)}."
    second = rest[0]
    none = "of which half or more diverged" if why_none(second.line.runs) == "diverged" else "which has none"
    value = short(second.middle) if math.isfinite(second.middle) else none
    text = f"{first.name} won: its {noun} is {_spread(first)}, the {extreme} of {len(found)}. "
    return text + f"Next is {second.name}, {value}. {_certainty(first, second)}"


def _spread(one: Standing) -> str:
    if len(one.values) == 1:
        return f"{short(one.middle)} (one run)"
    good = [value for value in one.values if math.isfinite(value)]
    to = f"{short(min(good))} to {short(max(good))}"
    if len(good) < len(one.values):
        lost = "diverged" if why_none(one.line.runs) == "diverged" else "have none"
        to = f"{'up to' if one.largest else 'from'} {short((max if one.largest else min)(good))}, and some {lost}"
    return f"{short(one.middle)} (median of {len(one.values)} runs, {to})"


def _certainty(first: Standing, second: Standing) -> str:
    """Say in how many pairs of runs the winner is ahead, which is what a rank test counts (Mann and Whitney, 1947)."""
    won, pairs = _ahead(first, second)
    if len(first.values) == 1 or len(second.values) == 1:
        return "With one run of each, chance may have decided: only more seeds would tell." if pairs == 1 else (
            f"It is ahead in {won:g} of {pairs} comparisons; with one run on a side, chance may have decided."
        )  # fmt: skip
    word = "Certain" if won == pairs and pairs >= 9 else "Likely" if won >= 0.8 * pairs else "Uncertain"
    more = ", whichever seeds are compared" if won == pairs else ""
    return f"{word}: it is ahead in {won:g} of {pairs} pairs of runs{more}."


def winner_table(panels: Sequence[Panel]) -> Table:
    """Return the first lines of the order, with the share of pairs of runs in which the winner is ahead of each."""
    y, found = standings(panels)
    rows: list[dict[str, Any]] = []
    for place, one in enumerate(found[:MOST_ROWS], start=1):
        good = [value for value in one.values if math.isfinite(value)]
        diverged = sum(run.has_diverged for run in one.line.runs)
        row = {"": place, "line": one.name, "runs": len(one.values), "diverged": diverged}
        row[f"final {y}"] = one.middle if math.isfinite(one.middle) else None
        row |= {"smallest": min(good, default=None), "largest": max(good, default=None)} if len(one.values) > 1 else {}
        tests = [math.inf if run.has_diverged else run.outcome.get("test_error") for run in one.line.runs]
        known = [error for error in tests if error is not None]
        if y == "validation_error" and len(known) == len(tests) and min(known) < math.inf:
            middle = median(known)
            row["test error"] = middle if math.isfinite(middle) else None
        if place > 1:
            won, pairs = _ahead(found[0], one)
            row["winner ahead"] = "equal" if won == pairs / 2 == 0.5 else f"{won:g} of {pairs}"
        rows.append(row)
    if all(row["diverged"] == 0 for row in rows):
        rows = [{name: value for name, value in row.items() if name != "diverged"} for row in rows]
    return Table(rows)
