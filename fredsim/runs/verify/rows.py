"""Verifies the rows of a sweep's runs.csv, for folders of which only runs.csv and sweep.yaml are kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fredsim.config.experiment import Experiment
from fredsim.config.sweep.expansion import Expansion
from fredsim.config.sweep.selection import Selection
from fredsim.errors import FredsimError, OutputError
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.sweep_tables import SweepTables, as_recorded, outcome_values, recorded_rows, recorded_tables
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import with_changes
from fredsim.runs.single.preloading import OneRun
from fredsim.runs.verify.verify import DifferenceError, on_backend, repeat_all

__all__ = ["has_rows_alone", "missing_rows", "rows_difference", "verify_rows"]


def has_rows_alone(folder: Path) -> bool:
    """Return whether a folder has the two files of a sweep, but no folder of any of its runs."""
    if not all(os.path.lexists(folder / name) for name in ("runs.csv", "sweep.yaml")):
        return False
    return not any((path / "config.yaml").exists() for path in folder.iterdir())  # whichever runs runs.csv names


def missing_rows(folder: Path, expansion: Expansion) -> list[str]:
    """Return the names of the runs of a sweep that runs.csv does not have: they never ended, or their rows are lost."""
    listed = {cells.get("run") for cells in recorded_rows(folder)}
    return [name for run in expansion.runs if (name := run.folder_name) not in listed]


def rows_difference(folder: Path) -> str | None:
    """Return how the tables of a sweep whose runs are not kept differ from what sweep.yaml and their rows give."""
    tables, rows = recorded_tables(folder)
    return tables.difference(folder, {number: as_recorded(tables, cells) for number, cells in rows})


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
    rows = []
    for cells in recorded_rows(folder):
        name = cells["run"]
        if name not in runs:
            raise OutputError(f"{folder / 'runs.csv'}: {folder / 'sweep.yaml'} has no run {name}; put the two back")
        if cells.get("status") == "failed":
            continue
        wanted = tuple((key, cells[key]) for key in tables.outcomes if key in cells)
        experiment = runs[name] if backend is None else with_changes(runs[name], on_backend(backend))
        rows.append(Row(name, experiment, wanted, expansion.selection, root))
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
    """The row's texts that say how the run ended, by column."""
    selection: Selection | None
    root: str | os.PathLike[str] | None

    def do(self, observer: Observer, stop: Callable[[], bool], threads: int | None = None) -> FredsimError | None:
        """Repeat it, on `threads` threads if its experiment gives no number; return what is wrong, or None."""
        try:
            with tempfile.TemporaryDirectory() as scratch:
                execute(
                    self.experiment, Path(scratch), root=self.root, observer=observer, stop=stop, label=self.name,
                    default_threads=threads,
                )  # fmt: skip
                return None if stop() else self._difference(outcome_values(Result(Path(scratch)), self.selection))
        except FredsimError as error:
            return error

    def _difference(self, found: dict[str, Any]) -> DifferenceError | None:
        for key, recorded in self.wanted:
            value = found.get(key)  # a run may measure less than others of its sweep
            now = "" if value is None else str(value)
            if recorded != now:
                return DifferenceError(f"runs.csv: {key} is {recorded} (recorded) and {now} (now)")
        return None
