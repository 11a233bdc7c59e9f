"""Does the runs of a sweep, one after another or in parallel, and writes the tables of those that have ended.

runs.csv has a row for each run that has finished, diverged or failed, in the order of the sweep. It is rewritten
whenever a run ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fredsim.config.document import dump_yaml
from fredsim.config.registry import own_modules
from fredsim.config.resolution import with_place
from fredsim.config.sweep.expansion import Expansion
from fredsim.errors import ConfigError, OutputError
from fredsim.plugins.user_code import user_code_digests
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.folders import claim, locked, withdraw
from fredsim.runs.folder.result import Result, check_inside
from fredsim.runs.folder.results import Results
from fredsim.runs.folder.sweep_tables import SweepTables, failed, outcome_values
from fredsim.runs.many.cluster import Cluster
from fredsim.runs.many.resuming import reason_to_run
from fredsim.runs.many.side_by_side import SideBySide
from fredsim.runs.many.tasks import Jobs, Task
from fredsim.runs.processes.isolation import note_code
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.processes.processes import Processes
from fredsim.runs.single.prepared import check_data
from fredsim.system.files import write_atomic, write_errors

__all__ = ["run_sweep"]


def run_sweep(
    expansion: Expansion,
    folder: Path,
    root: str | os.PathLike[str] | None,
    monitor: Monitor,
    stop: Callable[[], bool],
    *,
    resume: bool,
    jobs: Jobs,
    cluster: Cluster | None,
    policy: CheckpointPolicy,
) -> Results:
    """Do the runs of a document in subfolders of `folder`, and return them; with `resume` skip those finished there.

    A run that fails does not stop the others. Raises ConfigError or DataError before the first run if the data of any
    run is missing or does not fit it; OutputError if the folder holds something else.
    """
    names = [run.folder_name for run in expansion.runs]
    best = "" if expansion.selection is None else expansion.selection.best
    made_from = check_data(expansion.runs, root, best, elsewhere=cluster is not None)
    with locked(folder):
        for name in names:
            check_inside(folder, name)
        claim(folder, "sweep.yaml", expansion.heading + dump_yaml(expansion.source), runs=names if resume else None)
        note_code(folder / "sweep.yaml", [run.experiment for run in expansion.runs])
        tables, tasks, again = SweepFiles(expansion, folder, monitor), [], []
        for number, (run, name) in enumerate(zip(expansion.runs, names, strict=True)):
            why = reason_to_run(folder / name, run.experiment, root) if resume else ""
            if why is None:
                tables.add(number)
            else:
                code = user_code_digests(own_modules(run.experiment.plain()))
                wanted = made_from[number]._replace(code=code)
                tasks.append(Task(number, run.label, run.experiment, folder / name, root, wanted, policy))
                again += [f"{run.label} is done again: {why}"] if why else []
        tables.write()
        monitor.sweep(len(expansion.runs), len(expansion.runs) - len(tasks))
        for note in again:
            monitor.note(note)
        if cluster is not None:
            cluster.run(tasks, monitor, stop, tables.ended)
        elif jobs == "device":
            SideBySide(tasks, monitor, stop, tables.ended).run()
        elif jobs is not None and min(jobs, len(tasks)) > 1:
            Processes(tasks, jobs, monitor, stop, tables.ended).run()
        else:
            for task in tasks:
                tables.ended(task, task.do(monitor.observer(), stop))
                if stop():
                    break
        return Results(folder)  # read now: a process that waits for the lock writes runs.csv anew


class SweepFiles:
    """Writes the tables of a sweep: runs.csv, and best.csv once every run has ended."""

    def __init__(self, expansion: Expansion, folder: Path, monitor: Monitor) -> None:
        self._expansion, self._folder, self._monitor = expansion, folder, monitor
        self._tables = SweepTables.of(expansion)
        self._ended: dict[int, Mapping[str, Any]] = {}

    def add(self, number: int) -> None:
        """Add the summary of a run that has finished or diverged."""
        result = Result(self._folder / self._tables.names[number])
        self._ended[number] = outcome_values(result, self._expansion.selection)

    def ended(self, task: Task, error: Exception | None) -> None:
        """Add a run that has ended, failed if `error` is given, and write the tables."""
        if isinstance(error, ConfigError):  # a mistake that only shows in the run itself
            error = with_place(error, self._expansion.runs[task.number].place)
        if error is not None:
            with suppress(OutputError):  # of a folder that cannot be written, which fails this run alone
                withdraw(task.folder, task.experiment)
        else:
            try:
                if Result(task.folder).summary["status"] != "interrupted":
                    self.add(task.number)
            except OutputError as lost:  # somebody has removed it since it ended, or does it anew
                error = lost
        if error is not None:
            self._monitor.failed(task.label, str(error))
            self._ended[task.number] = failed(str(error))
        self.write()

    def write(self) -> None:
        """Write runs.csv, and best.csv if all runs have ended; otherwise remove best.csv. Raises OutputError."""
        runs, best = (self._folder / name for name in ("runs.csv", "best.csv"))
        with write_errors(runs):
            write_atomic(runs, self._tables.runs(self._ended))
        chosen = self._tables.best(self._ended)
        with write_errors(best):
            if chosen is None:
                best.unlink(missing_ok=True)
            else:
                write_atomic(best, chosen)
