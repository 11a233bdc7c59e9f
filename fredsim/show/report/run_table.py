"""The table of runs that a reader can sort, filter and group: its columns and rows as plain data for runs.js.

Of the keys of the experiments it has those in which the runs differ: first those that a sweep varies, then others that
differ between the folders. A key that is no axis of a sweep differs within it only because it follows from one that is
(such as the hyper-parameters of another server, filled in by default), and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fredsim.config.document import Document, flatten
from fredsim.config.sweep.outline import outline_of
from fredsim.errors import visible
from fredsim.runs.folder.results import Result
from fredsim.show.escaping import LINES
from fredsim.show.plots.groups import differences, filled, labels
from fredsim.show.plots.words import value_name

__all__ = ["run_table"]

#: The columns that say how a run ended. The last part may be missing, or the same in all runs.
MEASURES = ("validation_error", "validation_loss", "test_error", "gap", "gradient_norm")
OTHERS = ("iterations", "updates", "time", "bytes_pushed", "bytes_fetched")
COLUMNS = ("status", *MEASURES, *OTHERS)


def run_table(
    results: Sequence[Result],
    failures: Sequence[tuple[str, str]],
    sweeps: Sequence[Document],
    *,
    several: bool,
) -> dict[str, Any]:
    """Return the table: its columns and rows, and what all runs have in common.

    `several`: the runs are of more than one folder. A column has a `name`, a `kind` (name, own, key, outcome) and
    whether it is `numeric`, and `largest` if more is better in it; a row has one value per column: a number, a text, or
    None for none. `worst` has, for each row, the numbers of the columns in which it counts as the worst there can be;
    `diverged` and `interrupted` have the numbers of the rows of such runs.
    """
    # What sweeps vary, in their order; of the several axes of `cases` all.
    own = list(dict.fromkeys(key for sweep in sweeps for _, axes in outline_of(sweep).runs for key in flatten(axes)))
    differing = list(differences(results))
    keys = [key for key in own if key in differing]
    keys += [key for key in differing if key not in own and (several or not sweeps)]
    flat = filled(results)
    metrics = [*dict.fromkeys(name for result in results for name in result.own_metrics)]
    rows: list[dict[str, Any]] = []
    for result, label, config in zip(results, labels(results), flat, strict=True):
        outcome = result.outcome | {"status": result.ending}
        row: dict[str, Any] = {"run": visible(label)}
        row |= {f"key {key}": _plain(value_name(key, config[key]) if key.endswith("name") else config[key])
                for key in keys if key in config}  # fmt: skip
        row |= {name: _plain(outcome.get(name)) for name in (*COLUMNS, *metrics)}
        rows.append(row | {"digest": result.summary["digest"][:12]})
    rows += [{"run": visible(name), "status": "failed", "error": visible(error, LINES)} for name, error in failures]
    names = ["run", *(f"key {key}" for key in keys), "status", *MEASURES, *metrics, *OTHERS, "digest", "error"]
    values = {name: [row.get(name) for row in rows] for name in names}
    given = {
        name for name in COLUMNS if values.get(f"key {name}") == values[name]
    }  # as iterations, which a key has, too
    shared = {}  # what is the same in several runs; measures always have a column
    for name in COLUMNS if len(rows) > 1 else ():
        if name not in MEASURES and len({*values[name]}) == 1 and values[name][0] is not None:
            shared[name] = values[name][0]
    hidden = {*given, *shared}
    shown = [name for name in names if name not in hidden and any(value is not None for value in values[name])]
    lost = [[name for name in (*MEASURES, *metrics) if _is_lost(result, name)] for result in results]
    return {
        "columns": [
            _column(name, values[name], own, metrics)
            | {"name": _title(name, keys)}
            | ({"largest": True} if any(result.larger_is_better(name) for result in results) else {})
            for name in shown
        ],
        "rows": [[row.get(name) for name in shown] for row in rows],
        "worst": [[shown.index(name) for name in some if name in shown] for some in lost] + [[] for _ in failures],
        "diverged": [n for n, result in enumerate(results) if result.has_diverged],
        "interrupted": [n for n, result in enumerate(results) if result.summary["status"] == "interrupted"],
        "shared": {_title(name, keys): value for name, value in shared.items()},
    }


def _column(name: str, values: Sequence[Any], own: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    key = name.removeprefix("key ")
    kind = "name" if name == "run" else "outcome" if key == name else "own" if key in own else "key"
    there = [value for value in values if value is not None]
    numeric = all(not isinstance(value, str) or value in {"nan", "inf", "-inf"} for value in there)
    return {"kind": kind, "numeric": numeric, "measure": name in (*MEASURES, *metrics)}


def _title(name: str, keys: Sequence[str]) -> str:
    """Return a column's name; an outcome that is called as a key is how much of that was done."""
    if name.startswith("key "):
        return visible(name.removeprefix("key "))
    return f"{name.replace('_', ' ')} done" if name in keys else name.replace("_", " ")


def _is_lost(result: Result, name: str) -> bool:
    """Return whether a run counts as the worst in a measure that it has: it diverged, or its final value is NaN."""
    if name not in result.metrics:  # as the test error, which is computed at the end
        return result.has_diverged and result.outcome.get(name) is not None
    if result.metrics[name].isna().all():
        return False
    return result.has_diverged or math.isnan(result.final(name) or 0)


def _plain(value: Any) -> int | float | str | None:
    """Return a value as a table has it: a number, also `nan`, `inf` and `-inf`, or a text as YAML would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, int | float) else visible(str(value))
