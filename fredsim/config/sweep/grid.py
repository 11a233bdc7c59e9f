"""Checks the keys `cases` and `sweep` of a document before they are expanded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fredsim.config.document import Document, flatten, overlap
from fredsim.errors import ConfigError

__all__ = ["BEST", "LOSSES", "SECONDS_TO", "grid", "refuse_clashes", "refuse_too_many"]

MOST_RUNS = 10_000  # the most runs of a sweep
SECONDS_TO = "seconds_to"  # the simulated seconds until the error that `select` names is reached
BEST = ("validation_error", "validation_loss", "gap", "gradient_norm", SECONDS_TO)
"""What every sweep may select by, as far as its runs measure it."""
LOSSES = ("validation_loss", "gap", "gradient_norm")
"""The columns of runs.csv that are not finite if a run has come to nothing, whatever else it is measured by."""


def grid(document: Document) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """Return the document's sweep and cases, empty if it has none; those that are null are removed from the document.

    Raises ConfigError if they are malformed.
    """
    for key in ("sweep", "cases"):
        if key in document.data and document.data[key] is None:  # `sweep=null` on the command line removes it
            del document.data[key]
    sweep, cases = document.data.get("sweep", {}), document.data.get("cases", [])
    if not isinstance(sweep, dict) or not all(isinstance(values, list) for values in sweep.values()):
        place = document.place(("sweep",))
        raise ConfigError(f"{place}: sweep: must map each key to a list of values, such as seed: [0, 1]")
    for key, values in sweep.items():
        if not values:
            place = document.place((key,)) if (key,) in document.places else document.place(("sweep", key))
            raise ConfigError(f"{place}: {key}: is swept over an empty list; give it a value at least")
    empty = "cases" in document.data and not cases
    if empty or not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        place = document.place(("cases",))
        raise ConfigError(f"{place}: cases: must be a list of mappings of keys to values, such as - {{seed: 1}}")
    return sweep, cases


def refuse_too_many(document: Document, sweep: Mapping[str, Any], cases: Sequence[Any]) -> None:
    """Raise ConfigError if there are more than MOST_RUNS runs: a few long axes would give billions."""
    counts = {"cases": len(cases)} if cases else {}
    counts |= {key: len(values) for key, values in sweep.items()}
    if (runs := math.prod(counts.values())) > MOST_RUNS:
        of = " × ".join(f"{count} of {key}" for key, count in list(counts.items())[:10])
        place = document.place(("sweep",) if sweep else ("cases",))
        raise ConfigError(f"{place}: sweep: makes {runs:,} runs ({of}); take away values: {MOST_RUNS:,} are the most")


def refuse_clashes(document: Document, sweep: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError if two keys of cases and sweep set the same part of an experiment.

    An axis may lie within an earlier key, such as `server.lr` after `server`, if no value of the earlier one sets it.
    """
    earlier: dict[str, tuple[str, list[Any]]] = {}
    for case in cases:
        for key, value in case.items():
            earlier.setdefault(key, ("stands in cases", []))[1].append(value)
    for axis, values in sweep.items():
        for key, (what, before) in earlier.items():
            within = axis.removeprefix(f"{key}.") if axis.startswith(f"{key}.") else ""
            if axis == key or key.startswith(f"{axis}.") or (within and any(_sets(value, within) for value in before)):
                place = document.place(("sweep", axis))
                raise ConfigError(f"{place}: '{axis}' is swept, and '{key}' {what}; keep one of them")
        earlier[axis] = "is swept too", values


def _sets(value: Any, key: str) -> bool:
    """Return whether a value is not a mapping, or has this dotted key, a key within it, or one around it."""
    if not isinstance(value, Mapping):
        return True
    return any(overlap(one, key) for one in flatten(value))
