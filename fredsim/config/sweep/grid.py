"""Checks the keys `cases` and `sweep` of a document before they are expanded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fredsim.config.document import Document, flatten, overlap
from fredsim.config.plain_data import LETTERS
from fredsim.errors import ConfigError, flow

__all__ = ["BEST", "LOSSES", "OF_ALL", "SECONDS_TO", "grid", "refuse_clashes", "refuse_too_many"]

MOST_RUNS = 10_000  # the most runs of a sweep
MOST_VARIED = 1_000  # the most keys that it varies
MOST_VALUES = 20_000_000  # the most values of all runs together
LONGEST_EXAMPLE = 160  # the most letters of an axis that a message says how to write
OF_ALL = ("cases", "sweep", "select", "figures")  # keys of all runs together
SECONDS_TO = "seconds_to"  # the simulated seconds until the error that `select` names is reached
BEST = ("validation_error", "validation_loss", "gap", "gradient_norm", SECONDS_TO)
"""What every sweep may select by, as far as its runs measure it."""
LOSSES = ("validation_loss", "gap", "gradient_norm")
"""The columns of runs.csv that are not finite if a run has come to nothing, whatever else it is measured by."""


def grid(document: Document) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """Return the document's sweep and cases, empty if it has none.

    Those that are null, and a sweep without axes, are removed from the document. Raises ConfigError if they are
    malformed.
    """
    for key in ("sweep", "cases"):
        found = document.data.get(key, ...)
        if found is None or (key == "sweep" and found == {}):  # `sweep=null` on the command line removes it
            del document.data[key]
    sweep, cases = document.data.get("sweep", {}), document.data.get("cases", [])
    if not isinstance(sweep, dict) or not all(isinstance(values, list) for values in sweep.values()):
        place = document.place(("sweep",))
        raise ConfigError(f"{place}: sweep: must map each key to a list of values, such as {_example(sweep)}")
    for key, values in sweep.items():
        if not values:
            place = document.place((key,)) if (key,) in document.places else document.place(("sweep", key))
            raise ConfigError(f"{place}: {key}: is swept over an empty list; give it a value at least")
    empty = "cases" in document.data and not cases
    if empty or not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        place = document.place(("cases",))
        raise ConfigError(f"{place}: cases: must be a list of mappings of keys to values, such as - {{seed: 1}}")
    return sweep, cases


def _example(sweep: Any) -> str:
    """Return an axis as it should be written: the first that has no list, also one within a mapping, if it can be."""
    wrong = {key: one for key, one in sweep.items() if not isinstance(one, list)} if isinstance(sweep, dict) else {}
    key, value = next(iter(flatten(wrong).items()), ("seed", None))
    axis = f"{key}: {flow(value if isinstance(value, list) else [value])}"
    return "seed: [0, 1]" if value is None or len(axis) > LONGEST_EXAMPLE else axis


def refuse_too_many(
    document: Document, sweep: Mapping[str, Any], cases: Sequence[Any], per_run: Sequence[tuple[str, Any]] = ()
) -> None:
    """Raise ConfigError if there are more than MOST_RUNS runs, or if these have more than MOST_VALUES values in all.

    A few long axes would give billions of runs, and a long list would be copied for each of them. `per_run`: what an
    override gives each run.
    """
    place = document.place(("sweep",) if sweep else ("cases",))
    varied = len({*sweep, *(key for case in cases for key in case), *(key for key, _ in per_run)})
    if varied > MOST_VARIED:
        raise ConfigError(f"{place}: sweep: varies {varied:,} keys; {MOST_VARIED:,} are the most: take some away")
    counts = {"cases": len(cases)} if cases else {}
    counts |= {key: len(values) for key, values in sweep.items()}
    if (runs := math.prod(counts.values())) > MOST_RUNS:
        of = " × ".join(f"{count} of {key}" for key, count in list(counts.items())[:10])
        raise ConfigError(f"{place}: sweep: makes {runs:,} runs ({of}); take away values: {MOST_RUNS:,} are the most")
    of_each = [value for key, value in document.data.items() if key not in OF_ALL] + [value for _, value in per_run]
    of_some = [*([[value for case in cases for value in case.values()]] if cases else []), *sweep.values()]
    times = [runs // count for count in counts.values()]  # how often each case, and each value of an axis, is there
    found = runs * _size(of_each) + sum(n * _size(some) for n, some in zip(times, of_some, strict=True))
    if counts and found > MOST_VALUES:
        what = f"makes {runs:,} runs, which have {found:,} values in all; {MOST_VALUES:,} are the most"
        raise ConfigError(f"{place}: sweep: {what}: take away runs, or put long lists into files")


def _size(values: Iterable[Any]) -> int:
    """Return how many values these are, with all that lie in them; every LETTERS letters of a text count as one."""
    found = 0
    for value in values:
        found += 1
        if isinstance(value, Mapping | list):
            found += _size(value.values() if isinstance(value, Mapping) else value)
        elif isinstance(value, str):
            found += len(value) // LETTERS
    return found


def refuse_clashes(document: Document, sweep: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError if two keys of a case, or of cases and sweep, set the same part of an experiment.

    A key may lie within an earlier one, such as `server.lr` after `server`, if no value of the earlier one sets it.
    None may be one of all runs together, which do not have it.
    """
    for around, keys in (("sweep", [*sweep]), ("cases", [key for case in cases for key in case])):
        if wrong := next((key for key in keys if key.partition(".")[0] in OF_ALL), None):
            place = document.place((around, wrong) if around == "sweep" else (around,))
            what = f"varies {wrong!r}, and {wrong.partition('.')[0]} is of all runs together"
            raise ConfigError(f"{place}: {around}: {what}; give it beside {around}")
    earlier: dict[str, tuple[str, list[Any]]] = {}
    for case in cases:
        pairs = [*case.items()]
        for number, (key, value) in enumerate(pairs):
            for other, whole in pairs[:number]:
                if _clash(key, other, [whole]):
                    place = document.place(("cases",))
                    raise ConfigError(f"{place}: cases: one has '{key}' and '{other}'; keep one of them")
            earlier.setdefault(key, ("stands in cases", []))[1].append(value)
    for axis, values in sweep.items():
        for key, (what, before) in earlier.items():
            if _clash(axis, key, before):
                place = document.place(("sweep", axis))
                raise ConfigError(f"{place}: '{axis}' is swept, and '{key}' {what}; keep one of them")
        earlier[axis] = "is swept too", values


def _clash(key: str, earlier: str, values: Iterable[Any]) -> bool:
    """Return whether a key sets what an earlier one, with these values, has set."""
    within = key.removeprefix(f"{earlier}.") if key.startswith(f"{earlier}.") else ""
    return key == earlier or earlier.startswith(f"{key}.") or any(_sets(value, within) for value in values if within)


def _sets(value: Any, key: str) -> bool:
    """Return whether a value is not a mapping, or has this dotted key, a key within it, or one around it."""
    if not isinstance(value, Mapping):
        return True
    return any(overlap(one, key) for one in flatten(value))
