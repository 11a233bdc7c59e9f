"""The tables of a sweep, runs.csv and best.csv: made from its axes and from how its runs ended, and compared with that.

What a sweep varies is read from its sweep.yaml without resolving an experiment, so that no code of a user is imported.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from operator import itemgetter
from pathlib import Path
from typing import Any

from fredsim.config.document import flatten, read_document
from fredsim.config.metrics import columns_of, is_of_class, larger_columns
from fredsim.config.sweep.expansion import Expansion, folder_label
from fredsim.config.sweep.grid import SECONDS_TO
from fredsim.config.sweep.outline import outline_of
from fredsim.config.sweep.selection import Selection, best_rows
from fredsim.errors import FredsimError, OutputError, option, shown
from fredsim.runs.folder.result import Result, result_of
from fredsim.runs.folder.run_files import first_line, read_recorded, version_numbers
from fredsim.simulation.record.recorder import MEASURED
from fredsim.simulation.record.status import STATUSES
from fredsim.system.csv_files import OPTIONAL, read_cells
from fredsim.system.files import read_bytes

__all__ = [
    "Ended",
    "SweepTables",
    "as_recorded",
    "check_tables",
    "failed",
    "may_be_before",
    "outcome_values",
    "recorded_rows",
    "recorded_tables",
]

SUMMARY_COLUMNS = (
    "status", "iterations", "updates", "validation_loss", "validation_error", "test_error",
    "bytes_pushed", "bytes_fetched", "digest", "error",
)  # fmt: skip
TEXTS = ("status", "digest", "error")  # those of them that are no numbers

Ended = Mapping[int, Mapping[str, Any]]
"""How runs ended: the values of their columns, by their numbers in the sweep."""


def outcome_values(result: Result, selection: Selection | None) -> dict[str, Any]:
    """Return how a run ended, by column."""
    outcome = result.outcome
    found = {key: outcome.get(key) for key in SUMMARY_COLUMNS}
    found |= {key: outcome[key] for key in (*MEASURED, *result.own_metrics) if key in outcome}
    if selection is not None and selection.error is not None:
        reached = result.first_row("validation_error", selection.error)
        found[SECONDS_TO] = float(reached["time"].iloc[0]) if len(reached) else None
    return found


def failed(error: str) -> dict[str, Any]:
    """Return the columns of a run that failed."""
    return {"status": "failed", "error": error}


@dataclass(frozen=True)
class SweepTables:
    """What the tables of a sweep have, except how its runs ended.

    `names` are those of its runs' folders, "" for a run of which it is not known; `axes` are the runs' values of the
    axes under dotted keys; `cases` are the axes that the key `cases` varies.
    """

    names: Sequence[str]
    axes: Sequence[Mapping[str, Any]]
    outcomes: Sequence[str]
    """The columns that say how a run ended."""
    cases: Sequence[str]
    selection: Selection | None
    own: bool = False
    """Whether runs are of problems of the user's own, which have columns of their own, too."""
    larger: bool | None = False
    """Whether more is better in the column that `select` names; None: only the runs themselves say it."""

    @classmethod
    def of(cls, expansion: Expansion) -> SweepTables:
        """Return those of a sweep whose experiments are resolved."""
        plain = [run.experiment.plain() for run in expansion.runs]
        names, axes = [run.folder_name for run in expansion.runs], [flatten(run.axes) for run in expansion.runs]
        selection, own = expansion.selection, any("problem" in one for one in plain)
        larger = selection is not None and any(
            run.experiment.larger_is_better(selection.best) for run in expansion.runs
        )
        return cls(names, axes, _outcomes(plain, selection), expansion.cases, selection, own, larger)

    def runs(self, ended: Ended) -> str:
        """Return the text of runs.csv."""
        axes = [axis for axis in dict.fromkeys(key for axes in self.axes for key in axes) if axis not in self.outcomes]
        rows = [
            {"run": self.names[n], **self.axes[n], **columns} for n, columns in sorted(ended.items(), key=itemgetter(0))
        ]
        return _text(["run", *axes, *self.outcomes, *self._found(ended)], rows)

    def _found(self, ended: Ended) -> list[str]:
        """Return the columns of `per_class`, which depend on the data, and of problems: those that ended runs have."""
        found = dict.fromkeys(key for _, columns in sorted(ended.items(), key=itemgetter(0)) for key in columns)
        return [key for key in found if (is_of_class(key) or self.own) and key not in self.outcomes]

    def best(self, ended: Ended) -> str | None:
        """Return the text of best.csv; None if the sweep has no `select`, or if some runs have not ended."""
        if self.selection is None or len(ended) < len(self.axes):
            return None
        rows = [(self.axes[n], columns) for n, columns in sorted(ended.items(), key=itemgetter(0))]
        chosen = best_rows(self.selection, rows, self.cases, larger=bool(self.larger))
        return _text(list(chosen[0]), chosen)

    def difference(self, folder: Path, ended: Ended, *, before: bool = False) -> str | None:
        """Return where the tables in a folder first differ from these, or None. A best.csv may be missing.

        `before`: they may also be as fredsim 1.0.0 wrote them (`may_be_before`).
        """
        if self.larger is None:  # either way that the runs may have said
            both = [replace(self, larger=larger).difference(folder, ended, before=before) for larger in (False, True)]
            return both[0] and both[1]
        known = {*self.outcomes, *self._found(ended)}
        for name in (name for columns in ended.values() for name in columns if name not in known):
            return f"runs.csv: {name} is of the runs, and sweep.yaml does not ask for it"
        found = self._difference(folder, ended)
        if found is None or not before:
            return found
        return self._difference(folder, {n: _as_before(columns) for n, columns in ended.items()}) and found

    def _difference(self, folder: Path, ended: Ended) -> str | None:
        both = "{} there, and {} by the runs".format
        texts = {"runs.csv": self.runs(ended), "best.csv": self.best(ended)}
        for name, text in texts.items():
            if not os.path.lexists(folder / name):  # best.csv: the rows of runs.csv have been read
                continue
            if text is None:
                return f"{name}: is there, but {'some runs have not ended' if self.selection else 'there is no select'}"
            found = read_recorded(folder / name, read_bytes)
            if found != text.encode():
                return first_line(name, (found, text.encode()), both)
        return None


def _outcomes(runs: Sequence[Mapping[str, Any]], selection: Selection | None) -> list[str]:
    """Return the columns of runs.csv that say how the runs of this plain data ended."""
    seconds = [SECONDS_TO] if selection is not None and selection.error is not None else []
    gap = any(_inside(run, "model", "name") == "linear" and run.get("loss") is None for run in runs)
    norm = any(_inside(run, "evaluation", "gradient_norm") is True for run in runs)
    measured = [key for key, some in zip(MEASURED, (gap, norm), strict=True) if some]
    metrics = dict.fromkeys(name for run in runs for name in columns_of(run.get("evaluation")))
    return [*SUMMARY_COLUMNS, *seconds, *measured, *metrics]


def may_be_before(results: Iterable[Result]) -> bool:
    """Return whether fredsim 1.0.0 may have written the tables of these runs, by the versions in their summaries."""
    versions = [version_numbers(result.summary["versions"].get("fredsim")) for result in results]
    return all(version and version < (1, 1) for version in versions)


def _as_before(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a run ended as fredsim 1.0.0 wrote it: without NaN and infinity."""
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in columns.items()}


def _inside(data: Mapping[str, Any], part: str, key: str) -> Any:
    section = data.get(part)
    return section.get(key) if isinstance(section, Mapping) else None


def _text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cells(values: Mapping[str, Any], but: Collection[str]) -> dict[str, str]:
    """Return a run's values of the axes as runs.csv has them, `but` for the columns that say how it ended instead."""
    return {key: "" if value is None else str(value) for key, value in values.items() if key not in but}


def recorded_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a sweep's runs.csv, as text. Raises OutputError also for a status that no run has."""
    path = folder / "runs.csv"
    rows = read_cells(path)
    for cells in rows:
        if cells.get("status") not in STATUSES:
            what = f"the status of {cells.get('run', '')!r} is {shown(cells.get('status'))}"
            raise OutputError(f"{path}: is damaged ({what}, which no run has); run the experiment again")
    return rows


def recorded_tables(folder: Path) -> tuple[SweepTables, list[tuple[int, dict[str, str]]]]:
    """Return what the tables of a recorded sweep have, and each row of its runs.csv with the number of its run.

    No code of a user is imported, so the names of the runs are those of the rows. Raises OutputError if sweep.yaml is
    gone or a row is of no run of it, ConfigError if sweep.yaml is damaged.
    """
    path = folder / "sweep.yaml"
    if not os.path.lexists(path):
        raise OutputError(f"{path}: is gone, so runs.csv cannot be checked; put it back, or run the sweep again")
    outline = outline_of(read_document(path))
    axes = [flatten(values) for _, values in outline.runs]
    places: dict[str, list[int]] = {}
    for n, (_, values) in enumerate(outline.runs):
        places.setdefault(folder_label(values), []).append(n)
    outcomes = _outcomes([data for data, _ in outline.runs], outline.selection)
    texts = [_cells(values, but=outcomes) for values in axes]
    names, rows, number = [""] * len(axes), [], -1
    for cells in recorded_rows(folder):  # which are in the order of the sweep
        name = cells.get("run", "")
        later = [n for n in places.get(name.rpartition("-")[0], ()) if n > number]
        if not later:
            what = f"names the run {name!r}, which at this place is none of sweep.yaml"
            raise OutputError(f"{folder / 'runs.csv'}: {what}; put the two back, or run the sweep again")
        # Two axes may have the same last part, and so runs the same label.
        number = next((n for n in later if texts[n].items() <= cells.items()), later[0])
        names[number] = name
        rows.append((number, cells))
    own = any(isinstance(data.get("problem"), Mapping) for data, _ in outline.runs)
    best = outline.selection and outline.selection.best
    larger = None if own else any(best in larger_columns(data.get("evaluation")) for data, _ in outline.runs)
    return SweepTables(names, axes, outcomes, outline.cases, outline.selection, own, larger), rows


def check_tables(folder: Path) -> None:
    """Raise OutputError if the tables of a recorded sweep are not those of its runs, whose summaries are read.

    Of a run whose folder is not kept, the row is taken as it is; so is that of one that failed, unless there is a whole
    record of it: one that was refused a folder leaves what is there.
    """
    tables, rows = recorded_tables(folder)
    ended, results = {}, []
    for number, cells in rows:
        result = result_of(folder, cells["run"])
        if _is_whole(result) if cells.get("status") == "failed" else result.has_ended or result.folder.is_dir():
            if not str(result.summary.get("experiment")).startswith(cells["run"].rpartition("-")[2]):
                raise OutputError(f"{result.folder}: holds another run than its name says; run the experiment again")
            ended[number] = outcome_values(result, tables.selection)
            results.append(result)
            if tables.own and tables.selection is not None:
                tables = replace(tables, larger=result.larger_is_better(tables.selection.best))
        else:
            ended[number] = as_recorded(folder, tables, cells)
    if found := tables.difference(folder, ended, before=may_be_before(results)):
        raise OutputError(
            f"{folder}: a table was changed after the runs ({found}); {option('resume', 'True')} writes it again"
        )


def _is_whole(result: Result) -> bool:
    """Return whether a run has ended, and all of its files are as it wrote them."""
    try:
        return not result.changed_files
    except FredsimError:
        return False


def as_recorded(folder: Path, tables: SweepTables, cells: Mapping[str, str]) -> dict[str, Any]:
    """Return how a run ended by its row alone; of one that failed, nothing but its error counts.

    Raises OutputError if a cell that must be a number is none.
    """
    if cells.get("status") == "failed":
        return failed(cells.get("error", ""))
    known = {"run", *tables.outcomes, *(axis for axes in tables.axes for axis in axes)}
    columns = [*tables.outcomes, *(key for key in cells if is_of_class(key) or (tables.own and key not in known))]
    for column in columns:
        if column not in TEXTS and not OPTIONAL(cell := cells.get(column, "")):
            what = f"{column} of {cells.get('run', '')!r} is {shown(cell)}"
            raise OutputError(f"{folder / 'runs.csv'}: is damaged ({what}); run the experiment again")
    return {column: cells.get(column) or None for column in columns}
