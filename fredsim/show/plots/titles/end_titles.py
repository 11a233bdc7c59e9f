"""What a figure of ends says: its points, its question and answer, and the names of its axis and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fredsim.config.figures.options import SHARES
from fredsim.config.figures.quantities import of_which_less_is_better
from fredsim.runs.folder.results import Result
from fredsim.show.plots.drawing import Drawing, Options, X, axis_unit
from fredsim.show.plots.finals import final_middle, final_values, goal_of, last_rows
from fredsim.show.plots.groups import Panel, labels
from fredsim.show.plots.hidden_lines import merged_names
from fredsim.show.plots.numbers import number, worth
from fredsim.show.plots.titles.answers import in_order, leaders, ranked
from fredsim.show.plots.titles.costs import FEWEST, Cost, cheapest
from fredsim.show.plots.titles.fair import Field, field_of, nowhere_compared
from fredsim.show.plots.titles.questions import UNNAMED, direction, known_best, single
from fredsim.show.plots.titles.subjects import subject_of
from fredsim.show.plots.words import field_name, name_of, noun, spoken, value_name

__all__ = ["Point", "cases_of", "titled", "x_label"]

GROWING = ("clients.count",)  # keys that no one chooses for the smallest error
WITHOUT = "without (dotted)"  # what points are called that have no value on the x axis
COSTS = {"seconds": "simulated seconds"}
#: What an axis has that runs use up, where a question says on what y depends.
MEASURED = {
    "bytes": "the bytes pushed and fetched", "iterations": "the number of iterations",
    "updates": "the number of updates", "seconds": "the simulated time", "pushes": "the share of pushes that passed",
    "fetches": "the share of fetches that passed",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """Runs that differ only in their seed, or have the same value on the x axis, and how they ended.

    `x` is None if they do not have its key, or have null there.
    """

    x: float | str | None
    runs: list[Result]
    y: str

    @cached_property
    def finals(self) -> list[float]:
        """The final values of the runs that are drawn: of those that did not diverge, if there are any."""
        return final_values(self.runs, self.y)

    @cached_property
    def middle(self) -> float:
        """The median of the final values, where runs that diverged have the worst; NaN if that is not finite."""
        middle = final_middle(self.runs, self.y)
        return math.nan if middle is None else middle

    @property
    def key(self) -> str:
        """What is the same for points that hide one another."""
        return repr((self.x, self.finals, [run.has_diverged for run in self.runs]))


def titled(
    drawing: Drawing, panels: Sequence[Panel], points: Sequence[Mapping[str, Sequence[Point]]],
    same: Mapping[str, Sequence[str]], options: Options,
) -> Drawing:  # fmt: skip
    """Return a drawing with its question and answer, the order and the names of the legend, and which way is better."""
    subject, y, label = subject_of(panels), options.y, single(panels)
    merged = merged_names(same, subject.entries)
    name, adjective = of_which_less_is_better(y) or (y, "")
    own, largest = ("", False) if adjective else known_best(panels, y)
    adjective = adjective if options.axis is None else adjective or own
    x = MEASURED.get(options.x or "bytes") or x_label(options).partition(" (")[0]
    goal = goal_of((run for panel in panels for run in panel.runs), y)
    if not adjective or goal is not None:
        answer = "" if goal is None else f"All runs stop at {number(goal)}, so their ends do not tell who is ahead"
        better = direction(cheap=options.axis is None and not largest, largest=largest) if own and goal is None else ""
        return replace(drawing, question=f"How does {name} depend on {x}?", answer=answer, better=better, merged=merged)
    first = -1 if options.axis in GROWING else 0  # of these keys the largest value counts
    sign = -1 if largest else 1
    best = [
        {one: min(some[first:], key=lambda point: worth(sign * point.middle)) for one, some in found.items()}
        for found in points
    ]
    finals = [{one: point.middle for one, point in found.items()} for found in best]
    better = direction(cheap=options.axis is None, largest=largest)
    of = "" if label in UNNAMED else f" of {spoken(label)}"
    words = any(isinstance(point.x, str) for found in points for some in found.values() for point in some)
    runs = [{one: [run for point in some for run in point.runs] for one, some in found.items()} for found in points]
    last = [{one: last_rows(point.runs, y) for one, point in found.items()} for found in best]
    fields = [replace(field_of(found, options.x), last=rows) for found, rows in zip(runs, last, strict=True)]
    answer = leaders(finals, _placed(best, subject.full, options), largest=largest, fields=fields)
    by_wins = options.axis is not None
    order = [one for one in ranked(finals, largest=largest, fields=fields, by_wins=by_wins) if one in same]
    if not in_order(finals, largest=largest, fields=fields):
        drawing = replace(drawing, first="")
    if options.axis is None:
        drawing = replace(drawing, first=f"{adjective} first")  # the answer also counts what it costs
        cost = options.x or "bytes"
        what = f"{name}{of}" if label else name
        question = f"Which {subject.noun} is near the {adjective} {name} with the {FEWEST[cost]}?"
        question = f"With how few {COSTS.get(cost, cost)} does the {what} come near its lowest?" if label else question
        answer = _cheapest(points, subject.full, options)
    elif words:
        question = f"Which {noun({options.axis})} has the {adjective} {name}?"
        answer, order = _by_word(points, options, largest=largest), []  # it is not the lines that are ahead
    elif label:
        question = f"At which {x} is the {name}{of} {adjective}?"
        one, *more = (found[label] for found in best if label in found)
        at = f"at {name_of(options.axis)} = {number(one.x)}" if isinstance(one.x, int | float) else WITHOUT
        known = not more and math.isfinite(one.middle)
        answer = f"{adjective.capitalize()} {at}: {number(one.middle)}" if known else ""
    elif options.axis in GROWING:
        question = f"Which {subject.noun} keeps the {adjective} {name} as the {x} grows?"
        start, colon, rest = answer.partition(":")
        furthest = max((one.x for found in best for one in found.values() if isinstance(one.x, int | float)), default=0)
        answer = f"{start} at {name_of(options.axis)} = {number(furthest)}{colon}{rest}" if colon else ""
    else:
        question = f"Which {subject.noun} has the {adjective} {name}, and at which {x}?"
    apart = nowhere_compared(fields)
    return replace(drawing, question=question, answer=answer, order=order, apart=apart, merged=merged, better=better)


def cases_of(points: Sequence[Mapping[str, Sequence[Point]]], y: str) -> tuple[list[dict[str, float]], list[Field]]:
    """Return the values of the words of the x axis in each case, a line of a panel, and which words are compared."""
    cases = [{str(point.x): point for point in some} for found in points for some in found.values()]
    values = [{word: point.middle for word, point in found.items()} for found in cases]
    return values, [field_of({word: point.runs for word, point in found.items()}, None, y) for found in cases]


def _by_word(points: Sequence[Mapping[str, Sequence[Point]]], options: Options, *, largest: bool) -> str:
    """Return which word of the x axis has the best value: each line of each panel is a case."""
    by_word, fields = cases_of(points, options.y)
    every = dict.fromkeys(word for found in by_word for word in found)
    named = {word: spoken(value_name(options.axis or "", word)).replace(", ", ",") for word in every}
    named["None"] = WITHOUT
    return leaders(by_word, named, panels="cases", largest=largest, fields=fields)


def _cheapest(
    points: Sequence[Mapping[str, Sequence[Point]]], names: Mapping[str, str], options: Options
) -> str:  # fmt: skip
    """Return who is about as low as the lowest at the least cost; of points that differ in λ those of the largest."""
    every = {id(point): point for found in points for some in found.values() for point in some}
    counts = {key: {int(run.config["clients"]["count"]) for run in point.runs} for key, point in every.items()}
    most = max(max(count) for count in counts.values())
    several = len({count for some in counts.values() for count in some}) > 1 and len(points) == 1
    called = {
        key: spoken(text) for key, text in zip(every, labels([one.runs[0] for one in every.values()]), strict=True)
    }
    costs = [
        {
            one: [
                Cost(float(point.x), point.middle, called[id(point)])
                for point in found[one]
                if isinstance(point.x, int | float) and (not several or counts[id(point)] == {most})
            ]
            for one in found
        }
        for found in points
    ]
    x = options.x or "bytes"
    unit, unit_name = axis_unit(
        x, max((cost.cost for found in costs for some in found.values() for cost in some), default=0)
    )

    def amount(value: float) -> str:
        if x in SHARES:
            return f"{number(100 * value, 3)} %"
        return f"{number(value / unit, 3)} {unit_name or x}"

    return cheapest(costs, names, x, amount, f"λ = {most}" if several else "")


def _placed(best: Sequence[Mapping[str, Point]], names: Mapping[str, str], options: Options) -> dict[str, str]:
    """Return the names of lines; in a figure of one panel against a key, with where their best value is."""
    if len(best) > 1 or options.axis is None or options.axis in GROWING:
        return dict(names)
    x = name_of(options.axis)
    places = {label: point.x for label, point in best[0].items() if point.x is not None}
    shown = {label: at if isinstance(at, str) else f"{x} = {number(at)}" for label, at in places.items()}
    return {label: f"{name} at {shown[label]}" if label in shown else name for label, name in names.items()}


def x_label(options: Options) -> str:
    """Return the label of the x axis."""
    if options.x in SHARES:
        return f"share of {options.x} that passed"
    return X[options.x or "bytes"] if options.axis is None else field_name(options.axis)
