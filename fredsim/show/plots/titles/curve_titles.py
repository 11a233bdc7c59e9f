"""What a figure of curves says: its question and answer, and how its lines are named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fredsim.show.plots.coinciding import merged_name
from fredsim.show.plots.drawing import Drawing, Options, axis_unit, final_values, x_of
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.line_ends import End, name_ends
from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.questions import leaders, of_one, of_which_less_is_better, ranked, single, which
from fredsim.show.plots.titles.subjects import subject_of

__all__ = ["MANY", "Shape", "name_lines", "titled"]

MANY = 6  # the most lines that have bands, and are named by a legend alone
LONGEST_END = 40  # the most letters of a name that stands there
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


def titled(drawing: Drawing, panels: Sequence[Panel], same: Mapping[str, Sequence[str]], x: str, y: str) -> Drawing:
    """Return a drawing with its question and answer, and the order and the names of the legend."""
    subject = subject_of(panels)
    finals = [{line.label: _final(line, y) for line in panel.lines if line.label in same} for panel in panels]
    names = {label: merged_name([subject.entries[one] for one in several]) for label, several in same.items()}
    label = single(panels)
    known, largest = _known_best(panels, y)
    question = of_one(label, y) if label else which(subject, y, _when(panels, x), known and (y, known))
    answer = (
        leaders(finals, subject.full, largest=largest) if (of_which_less_is_better(y) or known) and not label else ""
    )
    order = ranked(finals, largest=largest)
    merged = {label: name for label, name in names.items() if len(same[label]) > 1}
    return replace(drawing, question=question, answer=answer, order=order, merged=merged)


def _known_best(panels: Sequence[Panel], y: str) -> tuple[str, bool]:
    """Return the adjective of the best value of a column of problems of the user's own, and if it is the largest.

    Without such problems the adjective is empty.
    """
    runs = [run for panel in panels for line in panel.lines for run in line.runs]
    if not all("problem" in run.config and y in run.own_metrics for run in runs):
        return "", False
    largest = {run.larger_is_better(y) for run in runs}
    return ("highest" if True in largest else "lowest", True in largest) if len(largest) == 1 else ("", False)


def _final(line: Line, y: str) -> float:
    final = final_values(line.runs, y)
    return median(final) if final else math.nan


def _when(panels: Sequence[Panel], x: str) -> str:
    """Return where all runs end that did not diverge, in words, if that is the same x."""
    runs = [run for panel in panels for line in panel.lines for run in line.runs if not run.has_diverged]
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
    name_ends(grid[0], ends)
    return True
