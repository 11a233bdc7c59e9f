"""What a figure of curves says: its question and answer, and how its lines are named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fredsim.config.figures.quantities import of_which_less_is_better, quantity
from fredsim.runs.folder.result import Result
from fredsim.show.plots.drawing import Drawing, Options, axis_unit, x_of
from fredsim.show.plots.finals import final_middle, final_values, first_x, goal_of, last_rows, why_none
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.hidden_lines import merged_names
from fredsim.show.plots.line_ends import End, name_ends
from fredsim.show.plots.numbers import median, number
from fredsim.show.plots.titles.answers import in_order, leaders, ranked
from fredsim.show.plots.titles.costs import FEWEST, NEAR_TEXT, limit_of
from fredsim.show.plots.titles.fair import Field, field_of, nowhere_compared
from fredsim.show.plots.titles.questions import direction, known_best, of_one, single, which, which_is_first
from fredsim.show.plots.titles.subjects import noun_of_panels, subject_of
from fredsim.show.plots.words import spoken

__all__ = ["MANY", "Shape", "name_lines", "titled"]

MANY = 6  # the most lines that have bands, and are named by a legend alone
LONGEST_END = 40  # the most letters of a name that stands there
COUNT = "clients.count"
FAR_APART = 0.02  # how far before another a line may end, as a share of its x
MOST_NAMED_ENDS = 24  # the most lines that are named where they end


class Shape(NamedTuple):
    """A line as it is drawn: its x in the axis's unit, the medians, and the edges of the band if there is one."""

    at: NDArray[np.float64]
    middle: NDArray[np.float64]
    band: tuple[NDArray[np.float64], NDArray[np.float64]] | None

    @property
    def key(self) -> tuple[bytes, ...]:
        """What is the same for lines that hide one another."""
        return tuple(values.tobytes() for values in (self.at, self.middle, *(self.band or ())))

    def until(self, stop: float) -> Shape:
        """Return the part of the line up to this x, in the axis's unit."""
        shown = self.at <= stop
        band = self.band and (self.band[0][shown], self.band[1][shown])
        return Shape(self.at[shown], self.middle[shown], band)


def titled(
    drawing: Drawing, panels: Sequence[Panel], shapes: Sequence[Mapping[str, Shape]],
    same: Mapping[str, Sequence[str]], x: str, y: str, unit: str,
) -> Drawing:  # fmt: skip
    """Return a drawing with its question and answer, the order and the names of the legend, and which way is better.

    `unit`: the name of that of the x axis.
    """
    if (goal := goal_of((run for panel in panels for run in panel.runs), y)) is not None:
        return _titled_to_goal(drawing, panels, same, x, y, goal)
    subject, label = subject_of(panels), single(panels)
    lines = [{line.label: line.runs for line in panel.lines} for panel in panels]  # those that coincide are in a tie
    ends = [{one: final_middle(runs, y) for one, runs in some.items()} for some in lines]
    finals = [{one: math.nan if middle is None else middle for one, middle in some.items()} for some in ends]
    fields = [field_of(some, x, y) for some in lines]
    known, largest = known_best(panels, y)
    directed, when = bool(of_which_less_is_better(y) or known), _when(panels, x)
    cheap = x == "bytes" and directed and not largest
    question, answer = which(subject, y, when, known and (y, known)), ""
    if label:
        question = of_one(label, y)
    elif cheap:
        question = f"Which {subject.noun} is near the lowest {quantity(y)} with the {FEWEST[x]}?"
        answer = _first_there(shapes, finals, fields, subject.full, unit)
        drawing = replace(drawing, first="lowest first")  # the answer also counts bytes
    elif directed and subject.keys == {COUNT}:
        question, answer = _of_counts(panels, finals, (y, when), largest=largest)
    elif directed:
        answer = leaders(finals, subject.full, largest=largest, fields=fields)
    if not cheap and not in_order(finals, largest=largest, fields=fields):
        drawing = replace(drawing, first="")
    better = direction(largest=largest, cheap=cheap) if directed else ""
    order = _drawn(ranked(finals, largest=largest, fields=fields, by_wins=not cheap), same)
    merged = merged_names(same, subject.entries)
    if len(lines) == 1 and len(order) > MANY and answer and _overlap(lines[0], fields[0], order, y):
        note = "The best two that are compared end in ranges that overlap."
        drawing = replace(drawing, caption=f"{drawing.caption} {note}")
    apart = nowhere_compared(fields)
    return replace(drawing, question=question, answer=answer, order=order, apart=apart, merged=merged, better=better)


def _titled_to_goal(
    drawing: Drawing, panels: Sequence[Panel], same: Mapping[str, Sequence[str]], x: str, y: str, goal: float
) -> Drawing:
    """Return a drawing of runs that stop at a value of y with its question and answer: which line is there first."""
    subject, label = subject_of(panels), single(panels)
    lines = [{line.label: line.runs for line in panel.lines} for panel in panels]
    times = [{one: median(first_x(run, x, y, goal) for run in runs) for one, runs in some.items()} for some in lines]
    finite = [time for found in times for time in found.values() if math.isfinite(time)]
    unit, name = axis_unit(x, max(finite, default=0.0))
    scaled = [{one: time / unit for one, time in found.items()} for found in times]
    fields = [field_of(some, x) for some in lines]
    if label:
        question = of_one(label, y, goal)
        answer = f"After {number(scaled[0][label])} {name or x}" if len(panels) == len(finite) == 1 else ""
    else:
        question = which_is_first(subject, y, goal)
        answer = leaders(scaled, subject.full, f" {name or x}", fields=fields)
        drawing = drawing if in_order(scaled, fields=fields) else replace(drawing, first="")
    return replace(
        drawing, question=question, answer=answer, order=_drawn(ranked(times, fields=fields), same),
        apart=nowhere_compared(fields), merged=merged_names(same, subject.entries),
        better="← less is better" if x == "bytes" else "← sooner is better",
    )  # fmt: skip


def _drawn(order: Sequence[str], same: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the labels of the lines that are drawn: of those that coincide, the first one's."""
    return [label for label in order if label in same]


def _first_there(
    shapes: Sequence[Mapping[str, Shape]], finals: Sequence[Mapping[str, float]], fields: Sequence[Field],
    names: Mapping[str, str], unit: str,
) -> str:  # fmt: skip
    """Return who first comes down to about the lowest final value, counted in the bytes of the axis.

    A line that has no final value, as where half of its runs diverged, is not there.
    """
    found, limit = [], math.inf
    for shape, final, field in zip(shapes, finals, fields, strict=True):
        ended = {one: final[one] for one in field.compared if math.isfinite(final[one])}
        limit = limit_of(min(ended.values(), default=math.inf))
        there = {one: shape[one].at[shape[one].middle <= limit] for one in ended}
        costs = {one: float(at[0]) for one, at in there.items() if len(at)}
        found.append({one: costs.get(one, math.inf) for one in field.compared})
    to = f"to {NEAR_TEXT} above the lowest"
    if len(fields) == 1:
        of = f" at {fields[0].of}" if fields[0].of else ""
        to = f"to {number(limit)}, {NEAR_TEXT} above the lowest{of}"
    return leaders(found, names, f" {unit}", start=f"Fewest bytes {to}")


def _of_counts(
    panels: Sequence[Panel], finals: Sequence[Mapping[str, float]], what: tuple[str, str], *, largest: bool
) -> tuple[str, str]:  # fmt: skip
    """Return the question and the answer of lines that differ in λ alone: which panel copes with the most clients."""
    y, when = what
    counts = {line.label: int(line.runs[0].config["clients"]["count"]) for panel in panels for line in panel.lines}
    least, most = min(counts.values()), max(counts.values())
    values = [{counts[line.label]: found[line.label] for line in panel.lines}
              for panel, found in zip(panels, finals, strict=True)]  # fmt: skip
    if len(panels) == 1:
        question = f"How does the {quantity(y)} {when} depend on the number of clients λ?"
        ends = {one: values[0][one] for one in (least, most)}
        none = {counts[line.label]: why_none(line.runs) for line in panels[0].lines}
        told = {one: number(value) if math.isfinite(value) else none[one] for one, value in ends.items()}
        known = any(map(math.isfinite, ends.values()))
        return question, ", ".join(f"{text} at λ = {one}" for one, text in told.items()) if known else ""
    adjective = "highest" if largest else (of_which_less_is_better(y) or ("", "lowest"))[1]
    question = f"Which {noun_of_panels(panels)} keeps the {adjective} {quantity(y)} as the number of clients λ grows?"
    last = {panel.title: found[most] for panel, found in zip(panels, values, strict=True) if most in found}
    of_most = [(panel.title, line.runs) for panel in panels for line in panel.lines if counts[line.label] == most]
    rows = {title: last_rows(runs, y) for title, runs in of_most}
    called, fields = {title: spoken(title) for title in last}, [Field([*last], {}, last=rows)]
    start, colon, rest = leaders([last], called, largest=largest, fields=fields).partition(":")
    return question, f"{start} at λ = {most}{colon}{rest}" if colon else ""


def _when(panels: Sequence[Panel], x: str) -> str:
    """Return where all runs end that did not diverge, in words, if that is the same x."""
    runs = [run for panel in panels for run in panel.runs if not run.has_diverged]
    ends = {float(x_of(run.metrics, x).iloc[-1]) for run in runs}
    if len(ends) != 1:
        return "at the end"
    (end,) = ends
    unit, name = axis_unit(x, end)
    count = number(end / unit)
    return f"after {count} {name or (x[:-1] if count == '1' and x != 'bytes' else x)}"


def _overlap(lines: Mapping[str, Sequence[Result]], field: Field, order: Sequence[str], y: str) -> bool:
    """Return whether the first two lines that are compared end in ranges that overlap; `order`: the best first."""
    ends = [final_values(lines[label], y) for label in order if label in field.compared][:2]
    if len(ends) < 2 or not all(len(values) > 1 for values in ends):
        return False
    (a, b), (c, d) = ((min(values), max(values)) for values in ends)
    return a <= d and c <= b


def name_lines(
    grid: Sequence[Axes], panels: Sequence[Panel], shapes: Sequence[Mapping[str, Shape]], drawing: Drawing,
    options: Options,
) -> bool:  # fmt: skip
    """Name the lines of a single panel where they end, if they are many; return whether that was done.

    `shapes` are the parts of lines that the panel shows. The lines of a sweep have a legend, whose title says what is
    swept.
    """
    subject = subject_of(panels)
    entries = subject.entries
    drawn = [line for line in panels[0].lines if line.label in drawing.order]
    if (
        subject.values
        or len(panels) > 1
        or options.style
        or drawing.published
        or not MANY < len(drawn) <= MOST_NAMED_ENDS
    ):
        return False
    ends = []
    for line in drawn:
        shape = shapes[0][line.label]
        known = np.flatnonzero(np.isfinite(shape.middle))
        if not len(known):
            return False
        text, y = drawing.merged.get(line.label, entries[line.label]), float(shape.middle[known[-1]])
        y = y if grid[0].get_yscale() == "linear" else max(y, 0.0)  # at the foot of a logarithmic axis
        ends.append(End(float(shape.at[known[-1]]), y, text, line.colour))
    if max(len(end.name) for end in ends) > LONGEST_END:
        return False
    if min(end.x for end in ends) < (1 - FAR_APART) * max(end.x for end in ends):  # a name would be far from its line
        return False
    name_ends(grid[0], ends)
    return True
