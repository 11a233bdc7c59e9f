"""The title of a figure as a question, and the answer below it: what is compared, which way is better, who is ahead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from fredsim.config.figures.options import name_of_error
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.subjects import Subject

__all__ = ["UNNAMED", "leaders", "of_one", "of_which_less_is_better", "quantity", "ranked", "single", "which"]

#: The columns of which less is better, and the adjective of the least.
QUANTITIES = {
    "validation_error": ("validation error", "lowest"),
    "validation_loss": ("validation loss", "lowest"),
    "perplexity": ("perplexity", "lowest"),
    "test_perplexity": ("test perplexity", "lowest"),
    "train_loss": ("training loss", "lowest"),
    "gap": ("gap to the optimum", "smallest"),
    "gradient_norm": ("gradient norm", "smallest"),
}
#: The labels of runs that differ in nothing.
UNNAMED = ("", "all runs", "others")
MOST_LEADERS = 2  # the most lines that an answer names
LONG = 40  # the most letters of a name in an answer

#: Each panel's values by label; less is better, and NaN or infinity are no result.
Values = Sequence[Mapping[str, float]]


def of_which_less_is_better(y: str) -> tuple[str, str] | None:
    """Return the name of a column in a sentence, and the adjective of its least; None of a number of other kinds."""
    error = name_of_error(y)
    return QUANTITIES.get(y, (error, "lowest") if error else None)


def quantity(y: str) -> str:
    """Return the name of a column in a sentence."""
    return (of_which_less_is_better(y) or (y, ""))[0]


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


def of_one(label: str, y: str) -> str:
    """Return the question about a figure of one line."""
    of = "" if label in UNNAMED else f" of {label}"
    return f"How low does the {quantity(y)}{of} get?" if of_which_less_is_better(y) else f"How does {y}{of} change?"


def ranked(values: Values, *, largest: bool = False) -> list[str]:
    """Return the labels, the best first: by their mean rank in the panels, those without a result last.

    `largest`: more is better.
    """
    if largest:
        values = [{label: -value for label, value in found.items()} for found in values]
    ranks: dict[str, list[int]] = {}
    for found in values:
        order = sorted(found, key=lambda label: found[label] if math.isfinite(found[label]) else math.inf)
        for label in found:
            better = sum(1 for other in order if found[other] < found[label])
            ranks.setdefault(label, []).append(better if math.isfinite(found[label]) else len(order))
    return sorted(ranks, key=lambda label: sum(ranks[label]) / len(ranks[label]))


def leaders(
    values: Values, names: Mapping[str, str], unit: str = "", panels: str = "panels", *, largest: bool = False
) -> str:
    """Return who is ahead: in one panel the best and the next with their values, in several how many each is best in.

    `names`: what a line is called, by label; `panels`: what panels are called; `largest`: more is better.
    """
    top = max if largest else min

    def name(label: str) -> str:
        text = names.get(label, label)
        return text if len(text) <= LONG else f"{text[: LONG - 1]}…"

    finite = [{label: value for label, value in found.items() if math.isfinite(value)} for found in values]
    finite = [found for found, every in zip(finite, values, strict=True) if found and len(every) > 1]
    if not finite:
        return ""
    if len(finite) == 1:
        values_of = finite[0]
        best = [label for label, value in values_of.items() if value == top(values_of.values())]
        if len(best) > MOST_LEADERS:
            return f"Ahead: {len(best)} of {len(values_of)} lines ({number(values_of[best[0]])}{unit} each)"
        if len(best) == MOST_LEADERS:
            return f"Ahead: {name(best[0])} and {name(best[1])} ({number(values_of[best[0]])}{unit} each)"
        order = sorted(values_of.items(), key=lambda one: one[1], reverse=largest)[:MOST_LEADERS]
        return f"Ahead: {'; next: '.join(f'{name(label)} ({number(value)}{unit})' for label, value in order)}"
    wins = Counter(label for found in finite for label, value in found.items() if value == top(found.values()))
    leading = wins.most_common(MOST_LEADERS)
    texts = [f"{name(label)} in {count}" for label, count in leading]
    texts[0] += f" of {len(finite)} {panels}"
    return f"Ahead: {', '.join(texts)}{', …' if len(wins) > len(leading) else ''}"
