"""The title of a figure as a question, and the answer below it: what is compared, which way is better, who is ahead."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from fredsim.config.figures.quantities import of_which_less_is_better, quantity
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.numbers import number, worth
from fredsim.show.plots.titles.fair import Field
from fredsim.show.plots.titles.subjects import Subject

__all__ = [
    "UNBROKEN",
    "UNNAMED",
    "direction",
    "equals",
    "known_best",
    "leaders",
    "most_wins",
    "of_one",
    "own_parts",
    "ranked",
    "shortened",
    "single",
    "which",
    "which_is_first",
]

#: The labels of runs that differ in nothing.
UNNAMED = ("", "all runs", "others")
DOWN, UP = "↓ lower is better", "↑ higher is better"
DOWN_LEFT, UP_LEFT = "↙ better: down and left", "↖ better: up and left"
MOST_LEADERS = 2  # the most lines that an answer names
ABOUT_EQUAL = 0.02  # the difference from the best, relative to it, up to which lines are called about equal
UNBROKEN = "\u00a0"  # a space at which no line is broken
LONG = 40  # the most letters of a name in an answer …
LONGEST = 80  # … and of the names of lines that are about equal

#: Each panel's values by label; less is better, and NaN or infinity are no result.
Values = Sequence[Mapping[str, float]]


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


def ranked(values: Values, *, largest: bool = False) -> list[str]:
    """Return the labels, the best first: by their mean rank in the panels, those without a result last.

    `largest`: more is better.
    """
    if largest:
        values = [{label: -value for label, value in found.items()} for found in values]
    ranks: dict[str, list[int]] = {}
    for found in values:
        order = sorted(found, key=lambda label: worth(found[label]))
        for label in found:
            better = sum(1 for other in order if found[other] < found[label])
            ranks.setdefault(label, []).append(better if math.isfinite(found[label]) else len(order))
    return sorted(ranks, key=lambda label: sum(ranks[label]) / len(ranks[label]))


def leaders(
    values: Values,
    names: Mapping[str, str],
    unit: str = "",
    panels: str = "panels",
    *,
    largest: bool = False,
    fields: Sequence[Field] = (),
    start: str = "",
) -> str:
    """Return who is ahead: in one panel the best and the next with their values, in several how many each is best in.

    Lines of about the same value are said to be about equal. If only one of several panels has values to compare, that
    is said. `names`: what a line is called, by label, of which the answer has what not all have; `panels`: what panels
    are called; `largest`: more is better; `fields`: for each panel which lines are compared, by default all; the best
    reference is named, too. `start`: the answer's first words in place of `Ahead`, with what the compared share.
    Of several panels those of one client do not count if others have more.
    """
    top = max if largest else min
    several = [place for place, field in enumerate(fields) if field.clients != 1]
    alone = ""
    if len(several) < len(fields) and any(len(values[place]) > 1 for place in several):
        values, fields = [values[place] for place in several], [fields[place] for place in several]
        panels, alone = f"{panels} with λ > 1", f"λ = {fields[0].clients}" if fields[0].clients else ""
    every, values = values, [_of_field(*one) for one in zip(values, fields, strict=True)] if fields else values
    finite = [{label: value for label, value in found.items() if math.isfinite(value)} for found in values]
    compared = [found for found, whole in zip(finite, values, strict=True) if len(whole) > 1]
    finite = [found for found in compared if found]
    if not finite:
        return ""
    of = fields[0].of if len(finite) == 1 and fields else ""  # is said before the lines of one panel
    whole = {label: names.get(label, label) for found in every for label in found}
    called = own_parts({label: ", ".join(part for part in name.split(", ") if part != of) or name
                        for label, name in whole.items()})  # fmt: skip
    if len(finite) == 1:
        first, _, rest = _of_one_panel(finite[0], called, unit, largest=largest).partition(":")
        if len(values) > 1:
            return f"{start or first} in 1 of {len(values)} {panels}:{rest}"
        if not fields:
            return f"{start or first}:{rest}"
        shared = alone or ("" if start else of)
        shared = f" at {shared}" if shared else ""
        return f"{start or first}{shared}:{rest}{_reference(every[0], fields[0], names, unit, largest=largest)}"
    wins = [[label for label, value in found.items() if value == top(found.values())] for found in finite]
    return f"{start or 'Ahead'}: {most_wins(wins, called, len(compared), panels)}"


def most_wins(wins: Sequence[Sequence[str]], called: Mapping[str, str], total: int, panels: str) -> str:
    """Return who is ahead in how many panels; of many lines those that are ahead in more of them than the others.

    `wins`: for each panel that has a result the labels of those that are ahead, several in a tie; `total`: how many
    panels there are.
    """
    count = Counter(label for labels in wins for label in labels)
    ahead = count.most_common()
    # Without others the last takes no more room than to say that there are some.
    if len(ahead) > MOST_LEADERS + 1 or (len(ahead) > MOST_LEADERS and ahead[0][1] == ahead[-1][1]):
        ahead = [one for one in ahead[:MOST_LEADERS] if one[1] > ahead[MOST_LEADERS][1]]
    named = {label for label, _ in ahead}
    others = sum(not named.issuperset(labels) for labels in wins)
    texts = [f"{_closed(called.get(label, label))} in {number}" for label, number in ahead]
    texts += [f"others in {others}"] if others else []
    if named:
        texts[0] += f" of {total} {panels}"
    elif max(count.values()) > 1:
        texts = [f"none in more than {max(count.values())} of {total} {panels}"]
    else:
        which_panels = f"{total}" if len(wins) == total else f"{len(wins)} of {total}"
        texts = [f"a different one in each of {which_panels} {panels}"]
    ties = sum(len(labels) > 1 for labels in wins)
    return ", ".join(texts) + (f" ({ties} tie{'s' if ties > 1 else ''})" if ties else "")


def _closed(name: str) -> str:
    """Return a name in which no comma can be taken for one between names."""
    first, comma, rest = name.partition(", ")
    return f"{first} ({rest})" if comma else name


def _of_field(found: Mapping[str, float], field: Field) -> dict[str, float]:
    return {label: value for label, value in found.items() if label in field.compared}


def _reference(found: Mapping[str, float], field: Field, names: Mapping[str, str], unit: str, *, largest: bool) -> str:
    """Return the best of the references with its value, as the end of an answer."""
    known = [label for label in field.references if math.isfinite(found.get(label, math.nan))]
    if not known:
        return ""
    best = (max if largest else min)(known, key=lambda label: found[label])
    what, value = field.references[best], f"{number(found[best])}{unit}"
    what = "one client" if what == "λ = 1" else what
    if what == "one client" and len(field.references) == 1:
        return f"; {what}: {value}"
    called = {label: names.get(label, label).replace(f"{field.references[best]}, ", "") for label in found}
    return f"; {what}: {own_parts(called)[best]} ({value})"


def shortened(answer: str, room: int) -> str:
    """Return an answer in so many letters a line: without the next and the reference, if need be; else on two lines."""
    first, *rest = answer.split("; ")
    while rest and len("; ".join([first, *rest])) > room:
        rest = rest[1:]
    text = "; ".join([first, *rest])
    if len(text) <= room:
        return text
    lines = _two_lines(text, room)
    return "\n".join(f"{line[: room - 1]}…" if len(line) > room else line for line in lines).replace("… …", "…")


def _two_lines(text: str, room: int) -> list[str]:
    """Return a text on two lines of up to so many letters: broken after its colon, or of about the same length.

    Neither an equation nor a number and its unit is broken.
    """
    start, colon, rest = text.partition(": ")
    if colon and room // 3 <= len(start) < room and len(rest) <= room:
        return [f"{start}:", rest]
    kept = re.sub(r" (?==)|(?<==) |(?<=\d) (?=[%A-Z])", UNBROKEN, text)
    for width in range(len(text) // 2, room):
        lines = textwrap.wrap(kept, width, break_long_words=False)
        if len(lines) <= 2 and all(len(line) <= width for line in lines):
            break
    else:
        lines = textwrap.wrap(kept, room, max_lines=2, placeholder=" …", break_long_words=False)
    return [line.replace(UNBROKEN, " ") for line in lines]


def _of_one_panel(values: Mapping[str, float], called: Mapping[str, str], unit: str, *, largest: bool) -> str:
    order = sorted(values, key=lambda label: values[label], reverse=largest)
    best = values[order[0]]
    near = [label for label in order if abs(values[label] - best) <= ABOUT_EQUAL * abs(best)]
    if len(near) > 1:
        some = equals([called[label] for label in near], len(order))
        ends = dict.fromkeys(number(values[label]) for label in (near[0], near[-1]))
        if values[near[-1]] == best:
            return f"{'Ahead' if len(near) < len(order) else 'Equal'}: {some} ({number(best)}{unit} each)"
        return f"About equal: {some} ({' to '.join(ends)}{unit})"
    return "Ahead: " + "; next: ".join(
        f"{called[label]} ({number(values[label])}{unit})" for label in order[:MOST_LEADERS]
    )


def equals(names: Sequence[str], compared: int) -> str:
    """Return the names of lines that are about equal, of so many that are compared; those without room are counted."""
    if len(names) == 1:
        return names[0]
    names = [*map(_closed, names)] if len(names) > 2 else names
    texts = [
        f"{', '.join(names[:count])} and {len(names) - count} of the {compared - count} others"
        for count in range(len(names) - 1, 0, -1)
    ]
    texts = [
        f"{', '.join(names[:-1])} and {names[-1]}",
        *([f"all {compared}"] if len(names) == compared > 2 else texts),
    ]
    return next((text for text in texts if len(text) <= LONGEST and "…" not in text), texts[-1])


def own_parts(names: Mapping[str, str]) -> dict[str, str]:
    """Return names without the parts, between commas, that all of them have; a name that has no other stays whole.

    Of a long name remain the first part and one or two more that together no other name has.
    """
    parts = {label: name.split(", ") for label, name in names.items()}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    own = {label: [part for part in found if part not in shared] or found for label, found in parts.items()}

    def short(label: str) -> str:
        text, first = ", ".join(own[label]), own[label][0]
        if len(text) <= LONG:
            return text
        others = [set(found) for other, found in parts.items() if other != label]
        some = ([first, *more] for count in (1, 2) for more in combinations(own[label][1:], count))
        alone = (", ".join(kept) for kept in some if not any({*kept} <= found for found in others))
        return next((name for name in alone if len(name) <= LONG), f"{text[: LONG - 1]}…")

    return {label: short(label) for label in names}
