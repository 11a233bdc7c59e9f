"""Who won: the line whose runs ended with the smallest error, or first at their goal, and how sure that is.

Only like is compared with like, as in figures: lines of the same panel that fredsim.show.plots.titles.fair compares,
and of these such as are measured on the same data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fredsim.config.figures.quantities import quantity
from fredsim.runs.folder.results import Result
from fredsim.show.plots.drawing import default_y
from fredsim.show.plots.finals import first_x, goal_of, ranking_value, why_none
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.kinds.curves import default_x
from fredsim.show.plots.numbers import given, median
from fredsim.show.plots.titles.answers import leaders
from fredsim.show.plots.titles.fair import Field, field_of
from fredsim.show.report.values import shown
from fredsim.show.tables import Table

__all__ = ["Contest", "Standing", "verdict", "winner_table", "winners"]

MOST_ROWS = 5
LENGTHS = ("iterations", "updates", "epochs", "seconds", "until")  # the keys that say how long a run is
REFERENCE = "reference"  # in the place of a line that is none of those compared


@dataclass(frozen=True)
class Measure:
    """What lines are compared by: `value` of a run, for its `column` at the end, or for when that came to a goal."""

    column: str
    title: str
    noun: str
    value: Callable[[Result], float]
    largest: bool = False
    """Whether more is better."""
    is_goal: bool = False


@dataclass(frozen=True)
class Standing:
    """A line, the number of its panel, and the values of its runs: the worst for each that diverged."""

    panel: int
    line: Line
    name: str
    values: list[float]
    largest: bool

    @property
    def key(self) -> float:
        """What is the smaller, the better the line is."""
        return -self.middle if self.largest else self.middle

    @property
    def middle(self) -> float:
        """The median of the values; not finite if half of the runs diverged."""
        return median(self.values)


@dataclass(frozen=True)
class Contest:
    """Lines of one panel: those that are compared, the best median first, and references, the best first."""

    compared: list[Standing]
    references: list[Standing]
    field: Field

    @property
    def winners(self) -> list[Standing]:
        """The lines of the best median, and those that cross the first; none without a median, or a second line."""
        first = self.compared[0]
        if len(self.compared) < 2 or math.isinf(first.middle):
            return []
        return [one for one in self.compared if one.middle == first.middle or self.crosses(one)]

    def crosses(self, one: Standing) -> bool:
        """Return whether a line crosses that of the best median in its last rows."""
        first = self.compared[0]
        return self.field.cross(first.line.label, one.line.label, largest=first.largest)


def _contests(panels: Sequence[Panel]) -> tuple[Measure, list[Contest]]:
    """Return what lines are compared by, and the contests of all panels; equal lines are in their order."""
    every = [run for panel in panels for run in panel.runs]
    x, measure = default_x(every), _measure(panels)
    found = []
    for number, panel in enumerate(panels):
        alike: dict[object, list[Line]] = {}
        for line in panel.lines:
            alike.setdefault(frozenset(_measured_on(run, measure.column) for run in line.runs), []).append(line)
        for lines in alike.values():
            y = None if measure.is_goal else measure.column
            field = field_of({line.label: line.runs for line in lines}, x, y)
            standings = []
            for line in lines:
                name = ", ".join(filter(None, (line.label, panel.title)))
                standings.append(Standing(number, line, name, [*map(measure.value, line.runs)], measure.largest))
            standings.sort(key=lambda one: one.key)
            compared = [one for one in standings if one.line.label in field.compared]
            references = [one for one in standings if one.line.label in field.references]
            found.append(Contest(compared, references, field))
    return measure, found


def _measured_on(run: Result, column: str) -> tuple[object, ...]:
    """Return what two runs must have in common for their numbers to be of the same thing."""
    config = run.config
    of_loss = config.get("loss") if column.endswith("loss") else None
    return *((config.get(key) or {}).get("name") for key in ("data", "problem")), repr(of_loss)


def _measure(panels: Sequence[Panel]) -> Measure:
    """Return what lines are compared by: the error, the gap, or else the loss; of runs with a goal when they reach it.

    If no line reaches the goal, it is their final values all the same.
    """
    runs = [run for panel in panels for run in panel.runs]
    column = next(iter(runs[0].config.get("until") or ()), "")
    if (goal := goal_of(runs, column)) is not None:
        measure = _to_goal(column, goal, default_x(runs))
        lines = [line for panel in panels for line in panel.lines]
        if any(math.isfinite(median(map(measure.value, line.runs))) for line in lines):
            return measure
    y = default_y(runs)
    largest = all(run.larger_is_better(y) for run in runs)
    least = -math.inf if largest else math.inf
    return Measure(y, f"final {y}", f"final {quantity(y)}", lambda run: ranking_value(run, y, least), largest)


def _to_goal(column: str, goal: float, x: str) -> Measure:
    """Return when runs come to the goal at which they stop; infinity of one that does not."""
    what = {"seconds": "time in seconds"}.get(x, f"number of {x}")
    noun = f"{what} until the {quantity(column)} is {given(goal)}"
    return Measure(column, f"{x} to {given(goal)}", noun, lambda run: first_x(run, x, column, goal), is_goal=True)


def winners(panels: Sequence[Panel]) -> list[Standing]:
    """Return the best line of each panel in which lines are compared; in a tie it is several."""
    return [one for contest in _contests(panels)[1] for one in contest.winners]


def _ahead(first: Standing, second: Standing) -> tuple[float, int]:
    """Return in how many pairs of their runs the first is ahead, and how many there are; equal values count half."""
    pairs = [(a, b) for a in first.values for b in second.values]
    sign = -1 if first.largest else 1
    return sum((sign * a < sign * b) + (a == b) / 2 for a, b in pairs), len(pairs)


def verdict(panels: Sequence[Panel]) -> str:
    """Return who won in a few sentences, and how sure that is; of several panels how many each line is best in."""
    measure, contests = _contests(panels)
    every = [one for contest in contests for one in (*contest.compared, *contest.references)]
    decided = [contest for contest in contests if contest.winners]
    decided = [contest for contest in decided if contest.field.clients != 1] or decided  # one copes with no staleness
    if all(math.isinf(one.middle) for one in every):
        return f"No line has a {measure.noun}: half of the runs or more diverged, or have none."
    if len(every) == 1:
        return f"{every[0].name}: {measure.noun} {_spread(every[0], measure)}."
    if not decided:
        return f"No panel has two lines to compare by the {measure.noun}."
    several = [contest for contest in contests if len(contest.compared) > 1]
    text = _of_one(measure, decided[0]) if len(decided) == 1 else _of_several(measure, several)
    uneven = any(len({_length(run) for one in contest.compared for run in one.line.runs}) > 1 for contest in decided)
    return f"{text} The runs that are compared have different lengths." if uneven else text


def _length(run: Result) -> str:
    return repr([run.config.get(key) for key in LENGTHS])


def _of_several(measure: Measure, contests: Sequence[Contest]) -> str:
    """Return in how many panels, or parts of them with the same data, each line is ahead, as figures say it."""
    values = [{one.line.label: one.middle for one in (*each.compared, *each.references)} for each in contests]
    panels = "panels" if len({each.compared[0].panel for each in contests}) == len(contests) else "cases"
    fields = [each.field for each in contests]
    start = f"Ahead by the {measure.noun}"
    text = leaders(values, {}, panels=panels, largest=measure.largest, fields=fields, start=start)
    runs = {len(one.values) for each in contests for one in each.compared}
    how = " With one run of each, chance may have decided: only more seeds would tell." if runs == {1} else ""
    return f"{text}.{how}"


def _of_one(measure: Measure, contest: Contest) -> str:
    """Return who won among the lines of one panel, who is next, and the best of the references."""
    first, *equal = contest.winners
    of = f" at {contest.field.of}" if contest.field.of else ""
    rank = f"the {'largest' if first.largest else 'smallest'} of {len(contest.compared)}{of}"
    if equal:
        names = " and ".join(one.name for one in (first, *equal)[:3])
        more = f" (and {len(equal) - 2} more)" if len(equal) > 2 else ""
        text = f"A tie: {names}{more} have the same {measure.noun}, {_spread(first, measure)}, {rank}."
        if any(map(contest.crosses, equal)):
            text = f"None is ahead: {names}{more} cross in their last rows, and have one run each. "
            text += f"The {measure.noun} of {first.name} is {shown(first.middle)}, {rank}."
    else:
        second = contest.compared[1]
        lost = f"of which half or more {_lost(second, measure)}"
        value = shown(second.middle) if math.isfinite(second.middle) else lost
        text = f"{first.name} won: its {measure.noun} is {_spread(first, measure)}, {rank}. "
        text += f"Next is {second.name}, {value}. {_certainty(first, second)}"
    known = [one for one in contest.references if math.isfinite(one.middle)]
    if known:
        why, more = contest.field.references[known[0].line.label], f" and {len(known) - 1} more" if known[1:] else ""
        text += f" Not compared{more}: {known[0].name} ({why}), {shown(known[0].middle)}."
    return text


def _lost(one: Standing, measure: Measure) -> str:
    """Return what runs of a line did that have no number."""
    if why_none(one.line.runs) == "diverged":
        return "diverged"
    return "did not get there" if measure.is_goal else "have none"


def _spread(one: Standing, measure: Measure) -> str:
    if len(one.values) == 1:
        return f"{shown(one.middle)} (one run)"
    good = [value for value in one.values if math.isfinite(value)]
    to = f"{shown(min(good))} to {shown(max(good))}"
    if len(good) < len(one.values):
        start, best = ("up to", max(good)) if one.largest else ("from", min(good))
        to = f"{start} {shown(best)}, and some {_lost(one, measure)}"
    return f"{shown(one.middle)} (median of {len(one.values)} runs, {to})"


def _certainty(first: Standing, second: Standing) -> str:
    """Say in how many pairs of runs the winner is ahead, which is what a rank test counts (Mann and Whitney, 1947).

    If both were equally good, each choice of which of the runs are the winner's would be as likely as another, and one
    of these is ahead in all pairs.
    """
    won, pairs = _ahead(first, second)
    counts = (len(first.values), len(second.values))
    if 1 in counts:
        return "With one run of each, chance may have decided: only more seeds would tell." if pairs == 1 else (
            f"It is ahead in {won:g} of {pairs} comparisons; with one run on a side, chance may have decided."
        )  # fmt: skip
    if won == pairs:
        once = math.comb(sum(counts), counts[0])
        return f"It is ahead in all {pairs} pairs of runs, as by chance alone once in {once:,}."
    return f"It is ahead in {won:g} of {pairs} pairs of runs, so chance may have decided."


def winner_table(panels: Sequence[Panel]) -> tuple[Table, list[int]]:
    """Return the first lines of the order, with the share of pairs of runs in which the winner is ahead of each.

    Of several panels it has the first two of each, with those of a tie. The second value: which rows are of winners.
    """
    measure, contests = _contests(panels)
    rows: list[dict[str, Any]] = []
    won: list[int] = []
    for contest in contests:
        winners = contest.winners
        most = MOST_ROWS if len(contests) == 1 else min(MOST_ROWS, max(2, len(winners)))
        for place, one in enumerate(contest.compared[:most], start=1):
            won += [len(rows)] if one in winners else []
            tied = 1 if one in winners else place
            rows.append({"": tied if len(contest.compared) > 1 else None} | _row(one, measure))
            if place > 1:
                ahead, pairs = _ahead(contest.compared[0], one)
                told = "equal" if ahead == pairs / 2 == 0.5 else f"{ahead:g} of {pairs}"
                rows[-1]["winner ahead"] = "they cross" if contest.crosses(one) else told
        rows += [{"": REFERENCE} | _row(one, measure) for one in contest.references[:1]]
    for name, without in (("", None), ("diverged", 0)):
        if all(row[name] == without for row in rows):
            rows = [{key: value for key, value in row.items() if key != name} for row in rows]
    return Table(rows), won


def _row(one: Standing, measure: Measure) -> dict[str, Any]:
    good = [value for value in one.values if math.isfinite(value)]
    row = {"line": one.name, "runs": len(one.values), "diverged": sum(run.has_diverged for run in one.line.runs)}
    row[measure.title] = one.middle if math.isfinite(one.middle) else None
    row |= {"smallest": min(good, default=None), "largest": max(good, default=None)} if len(one.values) > 1 else {}
    tests = [math.inf if run.has_diverged else run.outcome.get("test_error") for run in one.line.runs]
    known = [error for error in tests if error is not None]
    if measure.column == "validation_error" and len(known) == len(tests) and min(known) < math.inf:
        middle = median(known)
        row["test error"] = middle if math.isfinite(middle) else None
    return row
