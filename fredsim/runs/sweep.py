"""Does the runs of a sweep, one after another or in parallel, and writes the tables of those that have ended.

runs.csv has a row for each run that has finished, diverged or failed, in the order of the sweep. It is rewritten
whenever a run ends.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from operator import itemgetter
from pathlib import Path
from typing import Any

from fredsim.config.document import dump_yaml, flatten
from fredsim.config.expansion import Expansion, ResolvedRun
from fredsim.config.experiment import LinearChoice
from fredsim.config.resolution import with_place
from fredsim.config.selection import Selection, best_rows
from fredsim.errors import ConfigError
from fredsim.plugins.user_code import user_code_digests
from fredsim.runs.checkpoints import CheckpointPolicy
from fredsim.runs.cluster import Cluster
from fredsim.runs.folders import claim, locked
from fredsim.runs.observer import Monitor
from fredsim.runs.prepared import prepare
from fredsim.runs.processes import Processes
from fredsim.runs.results import Result
from fredsim.runs.resuming import reason_to_run
from fredsim.runs.tasks import Task
from fredsim.simulation.recorder import MEASURED
from fredsim.system.files import write_atomic, write_errors

__all__ = ["outcome_columns", "outcome_values", "run_name", "run_sweep"]

SUMMARY_COLUMNS = (
    "status", "iterations", "updates", "validation_loss", "validation_error", "test_error",
    "bytes_pushed", "bytes_fetched", "digest", "error",
)  # fmt: skip
SECONDS_TO = "seconds_to"  # the column of the seconds until the error that `select` names is reached


def run_sweep(
    expansion: Expansion,
    folder: Path,
    root: str | os.PathLike[str] | None,
    monitor: Monitor,
    stop: Callable[[], bool],
    *,
    resume: bool,
    jobs: int,
    cluster: Cluster | None,
    policy: CheckpointPolicy,
) -> None:
    """Do the runs of a document in subfolders of `folder`; with `resume` skip those that have finished there.

    A run that fails does not stop the others. Raises ConfigError or DataError before the first run if the data of any
    run is missing or does not fit it; OutputError if the folder holds something else.
    """
    names = [run_name(run) for run in expansion.runs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the sweep holds the run {twice} twice; leave one out")
    check_data(expansion, root)
    with locked(folder):
        claim(folder, "sweep.yaml", expansion.heading + dump_yaml(expansion.source), runs=names if resume else None)
        tables, tasks, again = SweepTables(expansion, folder, names, monitor), [], []
        for number, (run, name) in enumerate(zip(expansion.runs, names, strict=True)):
            why = reason_to_run(folder / name, run.experiment) if resume else ""
            if why is None:
                tables.add(number)
            else:
                code = user_code_digests(run.experiment.plain())
                tasks.append(Task(number, run.label, run.experiment, folder / name, root, code, policy))
                again += [f"{run.label} is done again: {why}"] if why else []
        tables.write()
        monitor.sweep(len(expansion.runs), len(expansion.runs) - len(tasks))
        for note in again:
            monitor.note(note)
        if cluster is not None:
            cluster.run(tasks, monitor, stop, tables.ended)
        elif min(jobs, len(tasks)) > 1:
            Processes(tasks, jobs, monitor, stop, tables.ended).run()
        else:
            for task in tasks:
                tables.ended(task, task.do(monitor.observer(), stop))
                if stop():
                    break


def check_data(expansion: Expansion, root: str | os.PathLike[str] | None) -> None:
    """Raise ConfigError, with file and line, or DataError if the data of a run is missing or does not fit it."""
    for run in expansion.runs:
        try:
            prepare(run.experiment, root)
        except ConfigError as error:
            raise with_place(error, run.place) from None


def run_name(run: ResolvedRun) -> str:
    """Return the name of a run's folder: its label, shortened if necessary, and its experiment's digest."""
    label = (run.label or "run").encode()[:200].decode(errors="ignore")  # file names have at most 255 bytes
    return f"{label}-{run.experiment.digest[:8]}"


def outcome_columns(expansion: Expansion) -> tuple[str, ...]:
    """Return the columns of runs.csv that say how a run ended."""
    selection = expansion.selection
    seconds = (SECONDS_TO,) if selection is not None and selection.error is not None else ()
    experiments = [run.experiment for run in expansion.runs]
    gap = any(isinstance(experiment.model, LinearChoice) for experiment in experiments)
    norm = any(experiment.evaluation.gradient_norm for experiment in experiments)
    return *SUMMARY_COLUMNS, *seconds, *(key for key, some in zip(MEASURED, (gap, norm), strict=True) if some)


def outcome_values(result: Result, selection: Selection | None) -> dict[str, Any]:
    """Return how a run ended, by column: those that `outcome_columns` returns."""
    outcome = result.outcome
    found = {key: outcome.get(key) for key in SUMMARY_COLUMNS}
    found |= {key: outcome[key] for key in MEASURED if key in outcome}
    if selection is not None and selection.error is not None:
        reached = result.first_row("validation_error", selection.error)
        found[SECONDS_TO] = float(reached["time"].iloc[0]) if len(reached) else None
    return found


class SweepTables:
    """The tables of a sweep: runs.csv, and best.csv once every run has ended."""

    def __init__(self, expansion: Expansion, folder: Path, names: Sequence[str], monitor: Monitor) -> None:
        self._expansion = expansion
        self._monitor = monitor
        self._folder = folder
        self._names = names
        self._axes = [flatten(run.axes) for run in expansion.runs]
        self._rows: dict[int, Mapping[str, Any]] = {}
        self._columns = outcome_columns(expansion)

    def add(self, number: int) -> None:
        """Add the summary of a run that has finished or diverged."""
        self._rows[number] = outcome_values(Result(self._folder / self._names[number]), self._expansion.selection)

    def ended(self, task: Task, error: Exception | None) -> None:
        """Add a run that has ended, failed if `error` is given, and write the tables."""
        if isinstance(error, ConfigError):  # a mistake that only shows in the run itself
            error = with_place(error, self._expansion.runs[task.number].place)
        if error is not None:
            self._monitor.failed(task.label, str(error))
            self._rows[task.number] = {"status": "failed", "error": str(error)}
        elif Result(task.folder).summary["status"] != "interrupted":
            self.add(task.number)
        self.write()

    def write(self) -> None:
        """Write runs.csv, and best.csv if all runs have ended; otherwise remove best.csv."""
        ended = sorted(self._rows.items(), key=itemgetter(0))
        rows = [{"run": self._names[n], **self._axes[n], **columns} for n, columns in ended]
        axes = [axis for axis in self._expansion.axes if axis not in self._columns]
        write_table(self._folder / "runs.csv", ["run", *axes, *self._columns], rows)
        best, selection = self._folder / "best.csv", self._expansion.selection
        if selection is None or len(ended) < len(self._expansion.runs):
            with write_errors(best):
                best.unlink(missing_ok=True)
            return
        chosen = best_rows(selection, [(self._axes[n], columns) for n, columns in ended], self._expansion.cases)
        write_table(best, list(chosen[0]), chosen)


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file atomically. Raises OutputError."""
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with write_errors(path):
        write_atomic(path, text.getvalue())
