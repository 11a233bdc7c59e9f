"""What the lines of a figure differ in: the noun of its question, the legend's title and entries, and the colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from fredsim.show.colours import sequential
from fredsim.show.plots.groups import Flat, Line, Panel, flat_config
from fredsim.show.plots.words import MOST_NOUNS, field_name, noun, part, place, said, spoken, value_name, words

__all__ = ["Subject", "coloured", "common_server", "noun_of_panels", "subject_of"]

LONGEST = 56  # the most letters of a legend's title that says what lines differ in
FEWEST = 3  # the fewest lines of a sweep that have the colours of an order
SEED = "seed"  # the key in which the runs of a line differ
BESIDE = "#222222"  # the colour of lines beside a sweep, such as one without a gate
Value = float | None


@dataclass(frozen=True)
class Subject:
    """What the lines of a figure differ in.

    `title` and `entries` are the legend's: the title has what all labels have in common, the entries, by label, the
    rest. `full`: the names of lines outside of the legend. `values`: of a sweep, each line's value of the number that
    is swept, ascending, None for lines beside it. `keys`: those in which the lines differ.
    """

    noun: str
    title: str
    entries: dict[str, str]
    full: dict[str, str]
    values: dict[str, Value] = field(default_factory=dict)
    keys: Set[str] = frozenset()


def subject_of(panels: Sequence[Panel]) -> Subject:
    """Return what the lines of these panels differ in, in the words that a figure shows."""
    found = _subject(panels)
    entries, full = ({label: said(text) for label, text in some.items()} for some in (found.entries, found.full))
    return replace(found, title=spoken(found.title), entries=entries, full=full)


def noun_of_panels(panels: Sequence[Panel]) -> str:
    """Return the noun of what panels differ in."""
    runs = [[flat_config(run) for run in panel.runs] for panel in panels]
    keys = {key for key in _between(runs) if not any(len(_values(key, configs)) > 1 for configs in runs)}
    return noun(keys)


def _subject(panels: Sequence[Panel]) -> Subject:
    every = {line.label: line for panel in panels for line in panel.lines}
    flat = {label: [flat_config(run) for run in line.runs] for label, line in every.items()}
    keys: set[str] = set()
    for panel in panels:
        keys |= _between([[flat_config(run) for run in line.runs] for line in panel.lines])
    # A key in which the runs of a line differ is not what the lines are named by.
    keys = {key for key in keys if all(len(_values(key, configs)) == 1 for configs in flat.values())}
    keys |= _seed_of(flat)
    title, entries = _shared([*every])
    told = _told(keys, flat) or keys
    key, values = _swept(keys, flat) or _swept(told, flat) or ("", {})
    switch = any(isinstance(config.get(key), bool) for key in told for some in flat.values() for config in some)
    what = noun(_apart(told, flat), _of_same_server(flat) & told, switch=switch)
    shown = ", ".join(filter(None, (title, what)))
    heading = shown if len(every) > 1 and what != "setting" and len(shown) <= LONGEST else title
    if len(values) < 2:
        alone = len(entries) > 1 and not any(", " in text for text in entries.values())
        if start := _prefix([*entries.values()]) if alone else "":
            short = {label: text.removeprefix(start) for label, text in entries.items()}
            full = short if all(text.isidentifier() for text in short.values()) else entries
            return Subject(what, heading or start.rstrip(" ="), short, full, keys=keys)
        return Subject(what, heading, entries, entries, keys=keys)
    texts = {label: words(key, flat[label][0][key]) for label, value in values.items() if value is not None}
    short = {label: text.removeprefix(_prefix([*texts.values()])) for label, text in texts.items()}
    if any(entries[label] != texts[label] for label in texts):  # named otherwise, as by a user
        return Subject(what, title, entries, entries, values, keys)
    order = sorted(values, key=lambda label: (values[label] is None, values[label] or 0.0))
    found = {label: short.get(label, entries[label]) for label in order}
    heading = ", ".join(filter(None, (title, field_name(key))))
    return Subject(what, heading, found, entries, {label: values[label] for label in order}, keys)


def common_server(panels: Sequence[Panel]) -> str:
    """Return the server that all runs of these panels have, with the rule of its steps; "" if they differ."""
    found = {
        " with ".join(value_name(key, config[key]) for key in ("server.name", "server.inner.name") if key in config)
        for config in (flat_config(run) for panel in panels for run in panel.runs)
    }
    return found.pop() if len(found) == 1 else ""


def coloured(panels: Sequence[Panel], subject: Subject) -> list[Panel]:
    """Return the panels, with the colours of an order if the lines are a sweep; its values are then in order."""
    numbers = [label for label, value in subject.values.items() if value is not None]
    if len(numbers) < FEWEST:
        return [*panels]
    looks = dict(zip(numbers, sequential(len(numbers)), strict=True))
    places = [*subject.values]

    def dressed(line: Line) -> Line:
        return replace(line, colour=looks.get(line.label, BESIDE), dash="-" if line.label in looks else "--")

    return [
        replace(panel, lines=sorted(map(dressed, panel.lines), key=lambda line: places.index(line.label)))
        for panel in panels
    ]


def _between(lines: Sequence[Sequence[Flat]]) -> set[str]:
    """Return the keys whose values differ between lines; values that all lines have in their runs do not."""
    keys = {key for line in lines for config in line for key in config} - {SEED}
    return {key for key in keys if len({_values(key, line) for line in lines}) > 1}


def _seed_of(flat: Mapping[str, Sequence[Flat]]) -> set[str]:
    """Return the key of the seed if lines differ in it, each has one, and the labels tell it."""
    found = {label: _values(SEED, configs) for label, configs in flat.items()}
    told = all(words(SEED, configs[0].get(SEED)) in label.split(", ") for label, configs in flat.items())
    return {SEED} if told and len({*found.values()}) > 1 and all(len(some) == 1 for some in found.values()) else set()


def _apart(keys: set[str], flat: Mapping[str, Sequence[Flat]]) -> set[str]:
    """Return the keys to name: if they are many, of those that change together, as for one of the lines, the first."""
    if len({part(key) for key in keys}) <= MOST_NOUNS:
        return keys
    first: dict[tuple[object, ...], str] = {}
    for key in sorted(keys, key=lambda one: (place(one), one)):
        values = [repr(configs[0].get(key)) for configs in flat.values()]
        first.setdefault(tuple(values.index(value) for value in values), key)
    return set(first.values())


def _told(keys: set[str], flat: Mapping[str, Sequence[Flat]]) -> set[str]:
    """Return the keys whose values the labels tell; runs that are drawn as one line may differ from others in more."""
    return {
        key
        for key in keys
        if any(key in configs[0] and words(key, configs[0][key]) in label for label, configs in flat.items())
    }


def _of_same_server(flat: Mapping[str, Sequence[Flat]]) -> set[str]:
    """Return the keys in which lines of the same server differ."""
    servers: dict[str, list[Sequence[Flat]]] = {}
    for configs in flat.values():
        servers.setdefault(str(configs[0].get("server.name")), []).append(configs)
    return {key for lines in servers.values() for key in _between(lines)}


def _values(key: str, configs: Sequence[Flat]) -> frozenset[str]:
    return frozenset(repr(config.get(key)) for config in configs)


def _swept(keys: Set[str], flat: dict[str, list[Flat]]) -> tuple[str, dict[str, Value]] | None:
    """Return the key of the only number that lines differ in, and each line's value, None without it.

    Other keys may differ only if they stand for the lines without the number, as `dispatcher.push` does for
    `dispatcher.push.bandwidth_aware.c`.
    """
    for key in sorted(keys - {SEED}):  # of which none is more than another
        values = {label: _number(configs[0].get(key)) for label, configs in flat.items()}
        numbers = [value for value in values.values() if value is not None]
        # Parts of the same gate, such as its `c` and its `per`, change together.
        gate = key.split(".")[:2] if key.startswith("dispatcher.") else None
        above = all(f"{key}.".startswith(f"{other}.") or other.split(".")[:2] == gate for other in keys)
        missing = all(key not in flat[label][0] for label, value in values.items() if value is None)
        if above and missing and len(set(numbers)) == len(numbers) > 1 and len(values) - len(numbers) <= 1:
            return key, values
    return None


def _number(value: object) -> Value:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shared(labels: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the parts that all labels have, and what is left of each."""
    parts = [label.split(", ") for label in labels]
    common = [part for part in parts[0] if all(part in other for other in parts)] if len(labels) > 1 else []
    rests = [", ".join(part for part in some if part not in common) for some in parts]
    if not all(rests):
        return "", dict(zip(labels, labels, strict=True))
    return ", ".join(common), dict(zip(labels, rests, strict=True))


def _prefix(texts: Sequence[str]) -> str:
    """Return the words with which all texts begin, none of them being its whole text."""
    first, *others = (text.split(" ") for text in texts)
    count = 0
    while count < len(first) - 1 and all(len(other) > count + 1 and other[count] == first[count] for other in others):
        count += 1
    return "".join(f"{word} " for word in first[:count])
