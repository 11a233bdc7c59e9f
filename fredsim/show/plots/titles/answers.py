"""The answer below a figure's question: who is ahead of those that are compared, and in how many panels."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from fredsim.show.plots.numbers import number, worth
from fredsim.show.plots.titles.fair import Field, nowhere_compared

__all__ = ["MOST_WINS", "UNBROKEN", "equals", "in_order", "leaders", "most_wins", "own_parts", "ranked", "shortened"]

MOST_LEADERS = 2  # the most lines that an answer names
ABOUT_EQUAL = 0.02  # the difference from the best, relative to it, up to which lines are called about equal
MOST_WINS = "most wins first"  # the order of lines that are ahead in several panels
UNBROKEN = "\u00a0"  # a space at which no line is broken
LONG = 40  # the most letters of a name in an answer …
LONGEST = 80  # … and of the names of lines that are about equal

#: Each panel's values by label; less is better, and NaN or infinity are no result.
Values = Sequence[Mapping[str, float]]


def ranked(values: Values, *, largest: bool = False, fields: Sequence[Field] = (), by_wins: bool = True) -> list[str]:
    """Return the labels, the best first: by their mean rank in the panels, those without a result last.

    `largest`: more is better. `fields`: those that are nowhere compared come after all others; in several panels,
    `by_wins`, those come first that are ahead in the most, as `leaders` counts them, and the mean rank decides between
    equal ones.
    """
    wins = _wins(values, fields, largest=largest) if by_wins and fields and len(values) > 1 else Counter[str]()
    apart = nowhere_compared(fields)
    if largest:
        values = [{label: -value for label, value in found.items()} for found in values]
    ranks: dict[str, list[int]] = {}
    for found in values:
        order = sorted(found, key=lambda label: worth(found[label]))
        for label in found:
            better = sum(1 for other in order if found[other] < found[label])
            ranks.setdefault(label, []).append(better if math.isfinite(found[label]) else len(order))
    return sorted(ranks, key=lambda label: (label in apart, -wins[label], sum(ranks[label]) / len(ranks[label])))


def _wins(values: Values, fields: Sequence[Field], *, largest: bool) -> Counter[str]:
    """Return in how many panels each line is ahead."""
    compared = _compared(*_that_count(values, fields))
    return Counter(label for found, field in compared for label in _ahead(found, field, largest=largest))


def _ahead(found: Mapping[str, float], field: Field, *, largest: bool) -> list[str]:
    """Return the lines with the best value, and those that cross the first of them in their last rows."""
    if not found:
        return []
    first = (max if largest else min)(found, key=lambda label: found[label])
    return [label for label in found if found[label] == found[first] or field.cross(first, label, largest=largest)]


def _that_count(values: Values, fields: Sequence[Field]) -> tuple[Values, Sequence[Field]]:
    """Return the panels that count: those of one client do not if others have more."""
    several = [place for place, field in enumerate(fields) if field.clients != 1]
    if len(several) < len(fields) and any(len(values[place]) > 1 for place in several):
        return [values[place] for place in several], [fields[place] for place in several]
    return values, fields


def _compared(values: Values, fields: Sequence[Field]) -> list[tuple[dict[str, float], Field]]:
    """Return, of each panel in which lines are compared, the values of these that are finite, and its field."""
    fields = fields or [Field([*found], {}) for found in values]
    return [
        ({label: found[label] for label in found if label in field.compared and math.isfinite(found[label])}, field)
        for found, field in zip(values, fields, strict=True)
        if sum(label in field.compared for label in found) > 1
    ]


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

    Lines of about the same value are said to be about equal, and those of one run that cross the best to do so. If only
    one of several panels has values to compare, that is said. `names`: what a line is called, by label, of which the
    answer has what not all have; `panels`: what panels are called; `largest`: more is better; `fields`: for each panel
    which lines are compared, by default all; the best reference is named, too. `start`: the answer's first words in
    place of `Ahead`, with what the compared share. Of several panels those of one client do not count if others have
    more.
    """
    alone, given = "", len(values)
    values, fields = _that_count(values, fields)
    if len(values) < given:
        panels, alone = f"{panels} with λ > 1", f"λ = {fields[0].clients}" if fields[0].clients else ""
    compared = _compared(values, fields)
    finite = [(found, field) for found, field in compared if found]
    if not finite:
        return ""
    of = fields[0].of if len(finite) == 1 and fields else ""  # is said before the lines of one panel
    whole = {label: names.get(label, label) for found in values for label in found}
    called = own_parts({label: ", ".join(part for part in name.split(", ") if part != of) or name
                        for label, name in whole.items()})  # fmt: skip
    if len(finite) == 1:
        first, _, rest = _of_one_panel(*finite[0], called, unit, largest=largest).partition(":")
        if len(values) > 1:
            return f"{start or first} in 1 of {len(values)} {panels}:{rest}"
        if not fields:
            return f"{start or first}:{rest}"
        shared = alone or ("" if start else of)
        shared = f" at {shared}" if shared else ""
        return f"{start or first}{shared}:{rest}{_reference(values[0], fields[0], names, unit, largest=largest)}"
    wins = [_ahead(found, field, largest=largest) for found, field in finite]
    return f"{start or 'Ahead'}: {most_wins(wins, called, len(compared), panels)}{_references(values, fields, names)}"


def in_order(values: Values, *, largest: bool = False, fields: Sequence[Field] = ()) -> bool:
    """Return whether lines have an order of merit, as far as `leaders` says so.

    They have none if those with the best value cross, or if all are about equal; in several panels, if all are ahead
    equally often.
    """
    compared = [one for one in _compared(*_that_count(values, fields)) if one[0]]
    if len(compared) != 1:
        wins = Counter(label for found, field in compared for label in _ahead(found, field, largest=largest))
        return len({wins[label] for _, field in compared for label in field.compared}) > 1
    ((found, field),) = compared
    best = (max if largest else min)(found.values())
    if {found[label] for label in _ahead(found, field, largest=largest)} != {best}:
        return False
    near = [label for label, value in found.items() if abs(value - best) <= ABOUT_EQUAL * abs(best)]
    return len(near) < len(field.compared)


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
    elif min(count.values()) == total:  # all of them, each time
        texts = [f"{equals([called.get(label, label) for label in count], len(called))} in {total} of {total} {panels}"]
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


def _reference(found: Mapping[str, float], field: Field, names: Mapping[str, str], unit: str, *, largest: bool) -> str:
    """Return the best of the references with its value, as the end of an answer."""
    known = [label for label in field.references if math.isfinite(found.get(label, math.nan))]
    if not known:
        return ""
    best = (max if largest else min)(known, key=lambda label: found[label])
    what, value = field.references[best], f"{number(found[best])}{unit}"
    what = _why(what)
    if what == "one client" and len(field.references) == 1:
        return f"; {what}: {value}"
    called = {label: names.get(label, label).replace(f"{field.references[best]}, ", "") for label in found}
    return f"; {what}: {own_parts(called)[best]} ({value})"


def _references(values: Values, fields: Sequence[Field], names: Mapping[str, str]) -> str:
    """Return which lines are references wherever they have a value, and why, as the end of an answer."""
    apart = nowhere_compared(fields)
    found = {
        label: why
        for known, field in zip(values, fields or [Field([], {})] * len(values), strict=True)
        for label, why in field.references.items()
        if math.isfinite(known.get(label, math.nan)) and label in apart
    }
    if len(reasons := {*found.values()}) != 1:
        return ""
    called = [*own_parts({label: names.get(label, label) for label in found}).values()]
    text = " and ".join(called) if len(called) <= MOST_LEADERS else f"{len(called)} others"
    return f"; {_why(reasons.pop())}: {text}"


def _why(what: str) -> str:
    """Return why lines are references, as the beginning of the words about them."""
    return "one client" if what == "λ = 1" else f"not compared ({what})"


def shortened(answer: str, room: int) -> str:
    """Return an answer in so many letters a line, on two lines if need be; without the next if that has no room.

    A reference, which says why a line is not compared, has the second line if it has no room on the first.
    """
    first, *rest = answer.split("; ")
    *above, last = first, *rest
    apart = f"{'; '.join(above)};\n{last}" if above and not last.startswith("next: ") else answer
    kept = (answer, apart, *("; ".join([first, *some]) for some in (rest[1:], rest[:1], [])))
    fits = [text for text in kept if all(len(line) <= room for line in text.split("\n"))]
    if fits:
        return fits[0]
    lines = _two_lines(first, room)
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


def _of_one_panel(
    values: Mapping[str, float], field: Field, called: Mapping[str, str], unit: str, *, largest: bool
) -> str:
    order = sorted(values, key=lambda label: values[label], reverse=largest)
    best = values[order[0]]
    tangled = sorted(_ahead(values, field, largest=largest), key=order.index)
    if values[tangled[-1]] != best:
        some = equals([called[label] for label in tangled], len(order))
        span = f"{number(best)} to {number(values[tangled[-1]])}{unit}"
        return f"None ahead: {some} cross in their last {len(field.last[order[0]])} rows ({span})"
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
