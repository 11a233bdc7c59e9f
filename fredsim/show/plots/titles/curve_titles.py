"""What a figure of curves says: its question and answer, and how its lines are named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fredsim.show.plots.drawing import Drawing, Options, axis_unit, final_values, x_of
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.hidden_lines import merged_names
from fredsim.show.plots.line_ends import End, name_ends
from fredsim.show.plots.numbers import median, number
from fredsim.show.plots.titles.costs import FEWEST, NEAR_TEXT, limit_of
from fredsim.show.plots.titles.fair import Field, field_of
from fredsim.show.plots.titles.questions import (
    direction,
    leaders,
    of_one,
    of_which_less_is_better,
    quantity,
    ranked,
    single,
    which,
)
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


def titled(
    drawing: Drawing, panels: Sequence[Panel], shapes: Sequence[Mapping[str, Shape]],
    same: Mapping[str, Sequence[str]], x: str, y: str, unit: str,
) -> Drawing:  # fmt: skip
    """Return a drawing with its question and answer, the order and the names of the legend, and which way is better.

    `unit`: the name of that of the x axis.
    """
    subject, label = subject_of(panels), single(panels)
    lines = [{line.label: line.runs for line in panel.lines if line.label in same} for panel in panels]
    finals = [{one: median(final_values(runs, y) or [math.nan]) for one, runs in some.items()} for some in lines]
    fields = [field_of(some, x) for some in lines]
    known, largest = _known_best(panels, y)
    directed, when = bool(of_which_less_is_better(y) or known), _when(panels, x)
    cheap = x == "bytes" and directed and not largest
    question, answer = which(subject, y, when, known and (y, known)), ""
    if label:
        question = of_one(label, y)
    elif cheap:
        question = f"Which {subject.noun} is near the lowest {quantity(y)} with the {FEWEST[x]}?"
        answer = _first_there(shapes, finals, fields, subject.full, unit)
    elif directed and subject.keys == {COUNT}:
        question, answer = _of_counts(panels, finals, same, (y, when), largest=largest)
    elif directed:
        answer = leaders(finals, subject.full, largest=largest, fields=fields)
    better = direction(largest=largest, cheap=cheap) if directed else ""
    order, merged = ranked(finals, largest=largest), merged_names(same, subject.entries)
    return replace(drawing, question=question, answer=answer, order=order, merged=merged, better=better)


def _first_there(
    shapes: Sequence[Mapping[str, Shape]], finals: Sequence[Mapping[str, float]], fields: Sequence[Field],
    names: Mapping[str, str], unit: str,
) -> str:  # fmt: skip
    """Return who first comes down to about the lowest final value, counted in the bytes of the axis."""
    found, limit = [], math.inf
    for shape, final, field in zip(shapes, finals, fields, strict=True):
        limit = limit_of(min((final[one] for one in field.compared if math.isfinite(final[one])), default=math.inf))
        there = {one: shape[one].at[shape[one].middle <= limit] for one in field.compared}
        found.append({one: float(at[0]) if len(at) else math.inf for one, at in there.items()})
    to = f"to {NEAR_TEXT} above the lowest"
    if len(fields) == 1:
        of = f" at {fields[0].of}" if fields[0].of else ""
        to = f"to {number(limit)}, {NEAR_TEXT} above the lowest{of}"
    text = leaders(found, names, f" {unit}")
    return f"Fewest bytes {to}:{text.partition(':')[2]}" if text else ""


def _of_counts(
    panels: Sequence[Panel], finals: Sequence[Mapping[str, float]], same: Mapping[str, Sequence[str]],
    what: tuple[str, str], *, largest: bool,
) -> tuple[str, str]:  # fmt: skip
    """Return the question and the answer of lines that differ in λ alone: which panel copes with the most clients."""
    y, when = what
    drawn = {one: first for first, several in same.items() for one in several}
    counts = {line.label: int(line.runs[0].config["clients"]["count"]) for panel in panels for line in panel.lines}
    least, most = min(counts.values()), max(counts.values())
    values = [{counts[line.label]: found[drawn[line.label]] for line in panel.lines}
              for panel, found in zip(panels, finals, strict=True)]  # fmt: skip
    if len(panels) == 1:
        question = f"How does the {quantity(y)} {when} depend on the number of clients λ?"
        return question, f"{number(values[0][least])} at λ = {least}, {number(values[0][most])} at λ = {most}"
    adjective = "highest" if largest else (of_which_less_is_better(y) or ("", "lowest"))[1]
    question = f"Which {noun_of_panels(panels)} keeps the {adjective} {quantity(y)} as the number of clients λ grows?"
    ends = {panel.title: found[most] for panel, found in zip(panels, values, strict=True) if most in found}
    start, colon, rest = leaders([ends], {title: spoken(title) for title in ends}, largest=largest).partition(":")
    return question, f"{start} at λ = {most}{colon}{rest}" if colon else ""


def _known_best(panels: Sequence[Panel], y: str) -> tuple[str, bool]:
    """Return the adjective of the best value of an own problem's column, or of a metric, and if it is the largest.

    It is empty of other columns, and of metrics that do not say that more is better.
    """
    runs = [run for panel in panels for run in panel.runs]
    if not all(y in run.own_metrics and ("problem" in run.config or run.larger_is_better(y)) for run in runs):
        return "", False
    largest = {run.larger_is_better(y) for run in runs}
    return ("highest" if True in largest else "lowest", True in largest) if len(largest) == 1 else ("", False)


def _when(panels: Sequence[Panel], x: str) -> str:
    """Return where all runs end that did not diverge, in words, if that is the same x."""
    runs = [run for panel in panels for run in panel.runs if not run.has_diverged]
    ends = {float(x_of(run.metrics, x).iloc[-1]) for run in runs}
    if len(ends) != 1:
        return "at the end"
    (end,) = ends
    unit, name = axis_unit(x, end)
    return f"after {number(end / unit)} {name or x}"


def name_lines(
    grid: Sequence[Axes], panels: Sequence[Panel], shapes: Sequence[Mapping[str, Shape]], drawing: Drawing,
    options: Options,
) -> bool:  # fmt: skip
    """Name the lines of a single panel where they end, if they are many; return whether that was done.

    The lines of a sweep have a legend, whose title says what is swept.
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
        known = np.flatnonzero(np.isfinite(shape.middle) & (shape.at <= (options.end or np.inf)))
        if not len(known):
            return False
        text = drawing.merged.get(line.label, entries[line.label])
        ends.append(End(float(shape.at[known[-1]]), float(shape.middle[known[-1]]), text, line.colour))
    if max(len(end.name) for end in ends) > LONGEST_END:
        return False
    if min(end.x for end in ends) < (1 - FAR_APART) * max(end.x for end in ends):  # a name would be far from its line
        return False
    name_ends(grid[0], ends)
    return True
