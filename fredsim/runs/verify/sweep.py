"""Verifies what belongs to a whole sweep: its runs, their configurations, its tables, and rows that alone are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fredsim.config.document import differing, read_document
from fredsim.config.experiment import FIGURE_KEYS, Experiment
from fredsim.config.sweep.expansion import Expansion, is_folder_name
from fredsim.config.sweep.selection import Selection
from fredsim.errors import FredsimError, OutputError
from fredsim.runs.folder.result import Result, result_of
from fredsim.runs.folder.run_files import FILES
from fredsim.runs.folder.sweep_tables import (
    SweepTables,
    as_recorded,
    may_be_before,
    outcome_values,
    recorded_rows,
    recorded_tables,
)
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import open_expansion, with_changes
from fredsim.runs.single.preloading import OneRun
from fredsim.runs.verify.verify import DifferenceError, on_backend, repeat_all
from fredsim.system.files import scratch_folder

__all__ = [
    "failed_runs",
    "has_rows_alone",
    "held_runs",
    "is_sweep",
    "missing_rows",
    "recorded_expansion",
    "rows_difference",
    "stopped_runs",
    "sweep_difference",
    "verify_rows",
]

OF_RUN = ("config.yaml", "summary.json", "checkpoint", *FILES)
NOT_FINITE = ("nan", "inf", "-inf")


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is a sweep's: whether it has runs.csv."""
    return os.path.lexists(folder / "runs.csv")  # False for a name that no file can have


def recorded_expansion(folder: Path) -> Expansion:
    """Return the runs that a sweep's sweep.yaml describes. Raises OutputError if it is gone, ConfigError."""
    if not os.path.lexists(folder / "sweep.yaml"):
        raise OutputError(f"{folder / 'sweep.yaml'}: is gone; put it back, or run the sweep again")
    if os.path.lexists(folder / "config.yaml"):
        raise OutputError(f"{folder / 'config.yaml'}: is not written by a sweep; remove it")
    return open_expansion(str(folder))


def held_runs(folder: Path) -> list[str]:
    """Return the names of the runs that have a folder in that of a sweep."""
    return sorted(name for name in _held(folder) if is_folder_name(name))


def stopped_runs(folder: Path, names: Iterable[str]) -> list[Result]:
    """Return those of a sweep's runs that were interrupted, which runs.csv does not have; as found."""
    results = [result_of(folder, name, as_found=True) for name in names]
    return [result for result in results if result.has_ended and not result.has_finished]


def sweep_difference(folder: Path, expansion: Expansion) -> str | None:
    """Return how a sweep's folder differs from its sweep.yaml and its runs, or None.

    Every folder of a run must be of the sweep and have its configuration. runs.csv and best.csv must have the bytes
    that follow from the summaries of the runs. Of a run that failed, the row's error is taken as it is.
    """
    tables = SweepTables.of(expansion)
    rows = {cells.get("run", ""): cells for cells in recorded_rows(folder)}
    held, names = set(_held(folder)), set(tables.names)
    for name, where in (*((name, "runs.csv names") for name in rows), *((name, "there is") for name in sorted(held))):
        if name not in names:
            return f"{where} the run {name}, which sweep.yaml does not have"
    ended, results = {}, []
    for number, (name, run) in enumerate(zip(tables.names, expansion.runs, strict=True)):
        result, cells = result_of(folder, name, as_found=True), rows.get(name)
        if name in held and (keys := _config_difference(result, run.experiment)):
            return f"{name}/config.yaml is not what sweep.yaml gives: {keys}"
        if result.has_finished:
            ended[number] = outcome_values(result, tables.selection)
            results.append(result)
        elif cells is not None and cells.get("status") == "failed":
            ended[number] = as_recorded(folder, tables, cells)
    found = tables.difference(folder, ended, before=may_be_before(results))
    if found is None and tables.best(ended) is not None:
        return None if os.path.lexists(folder / "best.csv") else "best.csv is gone"
    return found


def _config_difference(result: Result, experiment: Experiment) -> str:
    """Say how a run's config.yaml differs from its experiment; "" if it does only in figures."""
    recorded = read_document(result.folder / "config.yaml").data
    ignored: dict[str, Any] = dict.fromkeys(FIGURE_KEYS)
    wanted = experiment.plain()
    data = recorded.get("data")
    if isinstance(data, dict) and "data" in wanted:  # the run fills in the rows of a data set whose size it has found
        filled = {key: data[key] for key, value in wanted["data"].items() if value is None and key in data}
        wanted["data"] = wanted["data"] | filled
    return differing(recorded | ignored, wanted | ignored, "{}: {} there, {} by sweep.yaml")


def has_rows_alone(folder: Path) -> bool:
    """Return whether a folder has the two files of a sweep, but no folder with any file of a run, whichever it is."""
    return all(os.path.lexists(folder / name) for name in ("runs.csv", "sweep.yaml")) and not _held(folder)


def _held(folder: Path) -> list[str]:
    """Return the names of the folders in a sweep's that hold a file of a run."""
    return [path.name for path in folder.iterdir() if any(os.path.lexists(path / name) for name in OF_RUN)]


def missing_rows(folder: Path, expansion: Expansion) -> list[str]:
    """Return the names of the runs of a sweep that runs.csv does not have: they never ended, or their rows are lost."""
    listed = {cells.get("run") for cells in recorded_rows(folder)}
    return [name for run in expansion.runs if (name := run.folder_name) not in listed]


def failed_runs(folder: Path) -> list[str]:
    """Return the names of the runs that failed by runs.csv."""
    return [cells.get("run", "") for cells in recorded_rows(folder) if cells.get("status") == "failed"]


def rows_difference(folder: Path, expansion: Expansion) -> str | None:
    """Return how the tables of a sweep whose runs are not kept differ from what sweep.yaml and their rows give."""
    tables, rows = recorded_tables(folder)
    tables = replace(tables, larger=SweepTables.of(expansion).larger)  # which the class of a problem says
    return tables.difference(folder, {number: as_recorded(folder, tables, cells) for number, cells in rows})


def verify_rows(
    folder: Path,
    expansion: Expansion,
    jobs: int,
    new_monitor: Callable[[], Monitor],
    root: Path | None = None,
    backend: str | None = None,
) -> Iterator[tuple[Row, str | None]]:
    """Repeat each run of the table, `jobs` in parallel; yield each row with what differs from it, or None.

    Runs that failed are left out. `new_monitor` returns a monitor that shows the progress; `backend` is the one to
    compute on. Raises OutputError if the table names no run that ended, or one that the sweep does not have; what
    running raises; and KeyboardInterrupt when interrupted.
    """
    tables = SweepTables.of(expansion)
    runs = dict(zip(tables.names, (run.experiment for run in expansion.runs), strict=True))
    given = {"run", *expansion.axes} - {*tables.outcomes}  # an axis may have the name of an outcome
    recorded, rows = recorded_rows(folder), []
    before = not any(cell in NOT_FINITE for cells in recorded for key, cell in cells.items() if key not in given)
    for cells in recorded:
        name = cells["run"]
        if name not in runs:
            raise OutputError(f"{folder / 'runs.csv'}: {folder / 'sweep.yaml'} has no run {name}; put the two back")
        if cells.get("status") == "failed":
            continue
        wanted = tuple((key, cell) for key, cell in cells.items() if key not in given)
        experiment = runs[name] if backend is None else with_changes(runs[name], on_backend(backend))
        rows.append(Row(name, experiment, wanted, before, expansion.selection, root))
    if not rows:
        raise OutputError(f"{folder / 'runs.csv'}: names no run that ended; run the experiment again")
    with new_monitor() as monitor:
        monitor.sweep(len(rows), 0)
        found = repeat_all(rows, jobs, monitor)
    for row in rows:
        yield row, found[row]


@dataclass(frozen=True, eq=False)
class Row(OneRun):
    """A row of runs.csv, whose run is to be repeated."""

    name: str
    experiment: Experiment
    wanted: tuple[tuple[str, str], ...]
    """The row's texts that say how the run ended, by column: all that are no value of an axis."""
    before: bool
    """Whether the table may be one of fredsim 1.0.0, which left out NaN and infinity; it does not say its version."""
    selection: Selection | None
    root: str | os.PathLike[str] | None

    def do(self, observer: Observer, stop: Callable[[], bool], threads: int | None = None) -> FredsimError | None:
        """Repeat it, on `threads` threads if its experiment gives no number; return what is wrong, or None."""
        try:
            with scratch_folder() as scratch:
                execute(
                    self.experiment, scratch, root=self.root, observer=observer, stop=stop, label=self.name,
                    default_threads=threads,
                )  # fmt: skip
                if stop():
                    return None
                return self._difference(outcome_values(Result(scratch), self.selection), observer)
        except FredsimError as error:
            return error

    def _difference(self, found: dict[str, Any], observer: Observer) -> DifferenceError | None:
        wanted, left_out = dict(self.wanted), []
        for key in dict.fromkeys((*wanted, *found)):
            recorded, value = wanted.get(key, ""), found.get(key)  # a run may measure less than others of its sweep
            now = "" if value is None else str(value)
            if self.before and not recorded and now in NOT_FINITE:
                left_out.append(f"{key} is {now}")
            elif recorded != now:
                return DifferenceError(f"runs.csv: {key} is {recorded} (recorded) and {now} (now)")
        if left_out:
            what = f"its row leaves out what is not finite, as fredsim 1.0.0 did ({', '.join(left_out)})"
            observer.note(f"{self.name}: {what}, and best.csv may count it as a run that has not diverged")
        return None
