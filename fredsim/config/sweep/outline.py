"""What a document's sweep varies: the plain data of each run, before it is resolved, and so without any class."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from fredsim.config.document import Document, PlaceOf, assign, flatten, name_of_override, overlap, parse_override
from fredsim.config.plain_data import Key
from fredsim.config.sweep.grid import OF_ALL, grid, refuse_too_many
from fredsim.errors import ConfigError, flow, shown

if TYPE_CHECKING:
    from fredsim.config.sweep.selection import Selection

__all__ = ["Outline", "count_runs", "each_run", "keys_of", "outline_of", "override", "place_of"]

LONGEST = 100  # the most characters of an axis in a message


@dataclass(frozen=True)
class Outline:
    """What a sweep varies, which is known without resolving its experiments, and so without importing a user's code.

    `runs` has the plain data of each run before it is resolved, and the run's values of the axes.
    """

    runs: list[tuple[dict[str, Any], dict[str, Any]]]
    cases: list[str]
    selection: Selection | None


def outline_of(document: Document) -> Outline:
    """Return what a recorded sweep varies. Raises ConfigError if the document is malformed."""
    document, per_run, overridden = _opened(document)
    runs = [(data, axes) for data, axes, _ in each_run(document, per_run, overridden)]
    selection = None
    if document.data.get("select") is not None:
        from fredsim.config.sweep.selection import Selection, validated

        selection = validated(document, "select", Selection)
    return Outline(runs, keys_of(document.data.get("cases", [])), selection)


def count_runs(document: Document) -> int:
    """Return the number of runs of a recorded sweep, the quick way. Raises ConfigError as `outline_of`.

    It is the same whatever `select` says, which is not looked at. Where no key lies within an axis of `sweep`, that a
    run can be made does not depend on the values of those axes: so one run of each case is made.
    """
    document, per_run, overridden = _opened(document)
    sweep, cases = grid(document)
    keys = [*sweep, *(key for case in cases for key in case), *(key for key, _ in per_run)]
    if not any(key.startswith(f"{axis}.") for key in keys for axis in sweep):
        document.data["sweep"] = {axis: values[:1] for axis, values in sweep.items()}
    parts = {key.partition(".")[0] for key in (*keys, "cases", "sweep")}
    some = replace(document, data={name: value for name, value in document.data.items() if name in parts})
    for _ in each_run(some, per_run, overridden):
        pass
    return len(cases or [{}]) * math.prod(map(len, sweep.values()))


def _opened(document: Document) -> tuple[Document, list[tuple[str, Any]], set[Key]]:
    """Return a copy of a recorded sweep, and its overrides as `override` does. Raises ConfigError."""
    document = replace(document, data=dict(document.data), places=dict(document.places))
    per_run, overridden = override(document, ())
    refuse_too_many(document, *grid(document), per_run)
    return document, per_run, overridden


def keys_of(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys that cases vary, in the order in which they are written."""
    return list(dict.fromkeys(key for case in cases for key in flatten(case)))


def each_run(
    document: Document, per_run: Sequence[tuple[str, Any]], overridden: Set[Key]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], PlaceOf]]:
    """Yield the plain data of each run, its values of the axes, and the places of its keys. Raises ConfigError."""
    sweep, cases = grid(document)
    of_all = {*OF_ALL} - ({"figures"} if not (sweep or cases) else set())
    base = {key: value for key, value in document.data.items() if key not in of_all}
    for number, case in enumerate(cases or [{}]):
        for numbered in product(*map(enumerate, sweep.values())):  # the number of each value, and itself
            chosen = {**case, **{key: value for key, (_, value) in zip(sweep, numbered, strict=True)}}
            data = copy.deepcopy(base)
            written: dict[Key, Key] = {tuple(key.split(".")): ("cases", number, key) for key in case}
            written |= {tuple(key.split(".")): ("sweep", key, n) for key, (n, _) in zip(sweep, numbered, strict=True)}
            place = partial(place_of, document, written, overridden)
            for key, value in (*chosen.items(), *per_run):
                assign(data, key, copy.deepcopy(value), place(tuple(key.split("."))))
            chosen |= {axis: _found(data, axis) for axis in chosen for key, _ in per_run if overlap(axis, key)}
            yield data, chosen, place


def _found(data: Any, key: str) -> Any:
    """Return the value of a dotted key, None if there is none."""
    for name in key.split("."):
        data = data.get(name) if isinstance(data, dict) else None
    return data


def override(document: Document, overrides: Sequence[str]) -> tuple[list[tuple[str, Any]], set[Key]]:
    """Apply overrides to a document's data and places.

    Returns those that are to be applied to each run of a sweep instead (recorded ones first), and the keys of all
    overrides. Raises ConfigError.
    """
    data, places = document.data, document.places
    per_run: list[tuple[str, Any]] = []
    sweep, cases = grid(document)
    if (sweep or cases) and "overrides" in data:
        per_run = _recorded_overrides(document)
    overridden: set[Key] = {tuple(key.split(".")) for key, _ in per_run}
    of_axes: dict[str, Any] = {}
    for text in overrides:
        key, value = parse_override(text)
        at = tuple(key.split("."))
        for inner in [k for k in places if k[: len(at)] == at]:
            del places[inner]
        places[at] = name_of_override(text)
        overridden.add(at)
        if at[0] in {"sweep", "cases"} and len(at) > 1:
            raise ConfigError(f"{places[at]}: {_of_axis(key, value, sweep)}")
        if key in sweep:
            of_axes[key] = value
            sweep[key] = value if isinstance(value, list) else [value]
        elif key in {"sweep", "cases"} or at[0] in {"select", "figures"} or not (sweep or cases):
            assign(data, key, value, places[at])
        else:
            per_run.append((key, value))
        sweep, cases = grid(document)
        for lost in [axis for axis in of_axes if axis not in sweep]:  # this override removed the axis
            if sweep or cases:
                per_run.append((lost, of_axes.pop(lost)))
            else:
                assign(data, lost, of_axes.pop(lost), places[tuple(lost.split("."))])
    return per_run, overridden


def _of_axis(key: str, value: Any, sweep: Mapping[str, Any]) -> str:
    """Return what to write in the place of an override of a key within `sweep` or `cases`."""
    part, _, axis = key.partition(".")
    if part == "cases" or axis in sweep:
        return "to replace an axis write its key alone, such as seed=[0,1]"
    axes = flow({axis: value if isinstance(value, list) else [value]})
    such = axes if len(axes) <= LONGEST else f"{{{axis}: […]}}"
    return f"there is no axis {axis} to replace; give the sweep with all of its axes, such as 'sweep={such}'"


def _recorded_overrides(document: Document) -> list[tuple[str, Any]]:
    """Move `overrides` out of a recorded sweep's data, and their places to those of their keys. Raises ConfigError."""
    found = document.data.pop("overrides")
    if not isinstance(found, dict) or not all(all(key.split(".")) for key in found):
        place = document.place(("overrides",))
        raise ConfigError(f"{place}: overrides: is {shown(found)}; it must map dotted keys to values")
    document.places.update({tuple(key.split(".")): document.place(("overrides", key)) for key in found})
    return list(found.items())


def place_of(document: Document, written: Mapping[Key, Key], overridden: Set[Key], key: Key) -> str:
    """Return the place of a key of one run; `written` says under which key of the document each case and axis is."""
    for length in range(len(key), 0, -1):
        if key[:length] in overridden:  # an override has the last word
            break
        if key[:length] in written:
            return document.place((*written[key[:length]], *key[length:]))
    return document.place(key)
