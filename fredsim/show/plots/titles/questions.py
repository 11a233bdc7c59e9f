"""The title of a figure as a question: what is compared, and which way is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fredsim.config.figures.quantities import of_which_less_is_better, quantity
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.subjects import Subject

__all__ = ["UNNAMED", "direction", "known_best", "of_one", "single", "which", "which_is_first"]

#: The labels of runs that differ in nothing.
UNNAMED = ("", "all runs", "others")
DOWN, UP = "↓ lower is better", "↑ higher is better"
DOWN_LEFT, UP_LEFT = "↙ better: down and left", "↖ better: up and left"


def direction(*, cheap: bool, largest: bool = False) -> str:
    """Return which way is better: down, or up if the largest is best; and to the left if less of x is better, too."""
    if largest:
        return UP_LEFT if cheap else UP
    return DOWN_LEFT if cheap else DOWN


def known_best(panels: Sequence[Panel], y: str) -> tuple[str, bool]:
    """Return the adjective of the best value of an own problem's column, or of a metric, and if it is the largest.

    It is empty of other columns, and of metrics that do not say that more is better.
    """
    runs = [run for panel in panels for run in panel.runs]
    if not all(y in run.own_metrics and ("problem" in run.config or run.larger_is_better(y)) for run in runs):
        return "", False
    largest = {run.larger_is_better(y) for run in runs}
    return ("highest" if True in largest else "lowest", True in largest) if len(largest) == 1 else ("", False)


def single(panels: Sequence[Panel]) -> str:
    """Return the label of the only line, or an empty text if there are several."""
    labels = {line.label for panel in panels for line in panel.lines}
    return labels.pop() if len(labels) == 1 else ""


def which(subject: Subject, y: str, when: str = "at the end", known: tuple[str, str] | Literal[""] = "") -> str:
    """Return the question which line is best; for a server's own number, of which more may be better, how it goes.

    `known`: the column's name and the adjective of its best value, if these are known otherwise.
    """
    if not (found := known or of_which_less_is_better(y)):
        return f"Which {subject.noun} has which {y}?"
    name, adjective = found
    return f"Which {subject.noun} has the {adjective} {name} {when}?"


def which_is_first(subject: Subject, y: str, value: float) -> str:
    """Return the question which line is the first at a value of y."""
    return f"Which {subject.noun} is first at a {quantity(y)} of {number(value)}?"


def of_one(label: str, y: str, goal: float | None = None) -> str:
    """Return the question about a figure of one line; `goal`: the value at which its runs stop."""
    of = "" if label in UNNAMED else f" of {label}"
    if goal is not None:
        return f"When does the {quantity(y)}{of} come to {number(goal)}?"
    return f"How low does the {quantity(y)}{of} get?" if of_which_less_is_better(y) else f"How does {y}{of} change?"
