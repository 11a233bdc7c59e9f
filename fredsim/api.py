"""What `import fredsim` offers: run, sweep and load, and the results that they return.

These results are those that the layers below read (fredsim.runs.folder.results), with what needs the layers above as
methods: figures, reports, verification, and how a notebook shows them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, overload

import numpy as np

from fredsim.config.sweep.expansion import Expansion, Source
from fredsim.errors import ConfigError, FredsimError, OutputError, brief, shown
from fredsim.plugins.modules import code_allowed
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder import results as recorded
from fredsim.runs.many.runner import Stop, run_expansion, stop_on_interrupt
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.single.opening import open_expansion
from fredsim.show.on_rows import OnRow, RowMonitor
from fredsim.system.given import given_path

__all__ = ["Result", "Results", "load", "run", "sweep"]

Folder = str | os.PathLike[str]


class _Folder:
    """What the results of a run and of a sweep have in common."""

    folder: Path

    def _runs(self) -> list[recorded.Result]:
        raise NotImplementedError

    @brief
    def plot(
        self, kind: str = "curves", *, data_root: Folder | None = None, allow_code: bool = False, **options: Any
    ) -> Any:
        """Draw the runs and return the figure, a `matplotlib.figure.Figure`, which a notebook shows.

        Args:
            kind: which kind of figure, as `fredsim plot --kind` has them (docs/plots.md).
            data_root: where data files are kept, which a figure of shards reads.
            allow_code: run code that the folder names, which was not run here before: a figure of shards loads the
                data, which may be of a class.
            options: the keys of a figure in an experiment (docs/plots.md), such as `x`, `y`, `by`, `panel`, `where`,
                `best`, `log`, `title`; and `path`, a PDF, SVG or PNG file to write.

        Raises ConfigError for an option that the kind does not have, OutputError if results cannot be read.

        """
        from fredsim.show.plotting import figure_of

        if options.get("path") is not None:
            options["path"] = given_path(options["path"], "path")
        _flags(allow_code=allow_code)
        with code_allowed(allow_code):
            return figure_of(self._runs(), kind, options, _given(data_root, "data_root"), self.folder)

    @brief
    def report(
        self, path: Folder, *, by: str | Sequence[str] | None = None, panel: str | Sequence[str] | None = None
    ) -> Path:
        """Write a report, one HTML page, and return its path.

        `by` and `panel` are dotted keys whose values make a line or a panel; `panel` may be "none". Raises ConfigError
        if plotly is missing, OutputError if results cannot be read or the page cannot be written.
        """
        from fredsim.show.report import report

        by, panel = ([keys] if isinstance(keys, str) else keys for keys in (by, panel))
        file = given_path(path, "path")
        report([self.folder], file, by, [] if panel == ["none"] else panel)
        return file

    @brief
    def compare(
        self,
        other: Result | Results | Folder,
        *,
        replay: bool = True,
        data_root: Folder | None = None,
        allow_code: bool = False,
    ) -> list[str]:
        """Say where these runs and others first differ, bit for bit; the list is empty if all bits are the same.

        With `replay`, runs that differ are repeated to find the first event that differs; `data_root` is where data
        files are kept for that. Raises OutputError, DataError.
        """
        from fredsim.show import comparing

        tell = comparing.Collector()
        _flags(replay=replay, allow_code=allow_code)
        with code_allowed(allow_code):
            where = other.folder if isinstance(other, _Folder) else given_path(other, "other")
            comparing.compare(tell, self.folder, where, _given(data_root, "data_root"), replay=replay)
        return tell.differences

    @brief
    def verify(
        self,
        *,
        jobs: int = 1,
        backend: str | None = None,
        data_root: Folder | None = None,
        allow_code: bool = False,
    ) -> list[str]:
        """Run again from the saved configuration and compare every bit; return what differs, nothing if all is same.

        Args:
            jobs: how many runs, or parts of one between kept checkpoints, are repeated in parallel.
            backend: compute with this one instead of the recorded one.
            data_root: where data files are kept.
            allow_code: run code that the folder names, which was not run here before.

        Raises ConfigError, DataError, OutputError if the runs cannot be repeated.

        """
        from fredsim.show import comparing

        tell = comparing.Collector()
        _flags(allow_code=allow_code)
        with code_allowed(allow_code):
            comparing.verify(tell, self.folder, jobs, _given(data_root, "data_root"), backend)
        return tell.differences


class Result(_Folder, recorded.Result):
    """The result of one run, in its folder, an absolute path; each file is read when it is first needed.

    Every property raises OutputError if its file is missing, damaged, or not as the run wrote it.
    """

    def __init__(self, folder: Folder, *, as_found: bool = False) -> None:
        """Take the folder of a run; `as_found`: also read files that were changed since the run.

        Raises OutputError if it is no folder of a run.
        """
        super().__init__(_found(folder), as_found=as_found)
        if not os.path.isfile(self.folder / "config.yaml"):
            raise OutputError(f"{folder}: holds no run (there is no config.yaml); a sweep is read by fredsim.Results")

    def _runs(self) -> list[recorded.Result]:
        anew = Result(self.folder, as_found=self._as_found)  # whose tables nobody has changed
        if "summary" in vars(self) and anew.summary.get("sha256") != self.summary.get("sha256"):
            raise OutputError(f"{self.folder}: holds another run than when its summary was read; load it anew")
        return [anew]

    def _repr_html_(self) -> str:
        from fredsim.show.html import html_of

        return html_of(self._runs(), self.folder)


class Results(_Folder, recorded.Results):
    """The results of a sweep's runs that finished or diverged, in order; those that failed are in `failures`."""

    def __init__(self, folder: Folder, *, as_found: bool = False) -> None:
        """Take the folder of a sweep; `as_found` as in `Result`. Raises OutputError if it is no folder of a sweep."""
        found = _found(folder)
        if not os.path.isfile(found / "runs.csv"):
            raise OutputError(f"{folder}: holds no sweep (there is no runs.csv); a run is read by fredsim.Result")
        super().__init__(found, as_found=as_found)

    def __iter__(self) -> Iterator[Result]:
        return (self[place] for place in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...

    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        """Return a run's result, or those of some runs. Raises OutputError if a folder is missing."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return _taken(super().__getitem__(index), as_found=self._as_found)

    def _runs(self) -> list[recorded.Result]:
        return [*self]

    def _repr_html_(self) -> str:
        from fredsim.show.html import html_of

        return html_of([*self], self.folder, self.failures)


@brief
def run(
    source: Source,
    overrides: Sequence[str] = (),
    out: Folder | None = None,
    *,
    data_root: Folder | None = None,
    resume: bool = False,
    jobs: int | Literal["device"] | None = None,
    dask: str | None = None,
    checkpoint: float = 60.0,
    keep_checkpoints: bool = False,
    allow_code: bool = False,
    progress: bool = False,
    on_row: OnRow | None = None,
) -> Result:
    """Run an experiment and return its result.

    Args:
        source: a YAML file, the name of an experiment that comes with fredsim, or a dict of the same shape.
        overrides: `KEY=VALUE` strings with dotted keys, applied last.
        out: the folder of results; None: results/NAME.
        data_root: where data files are kept; see fredsim.data.datasets.data_root.
        resume: do not repeat a run that has finished; if the source is a results folder, continue in it unless `out`
            is given.
        jobs: for a sweep, as in `sweep`.
        dask: for a sweep, as in `sweep`.
        checkpoint: seconds between two checkpoints of a run, 0 for none; a stopped run continues from its last one.
        keep_checkpoints: keep all checkpoints, even when a run has ended: `verify` can then do its parts in parallel.
        allow_code: if the source is a results folder, whether to run code that it names, which was not run here before.
        progress: show on stderr, or in a notebook, how far the run has come.
        on_row: called with each row of metrics.csv when it is recorded, a dict of its columns, and `run`, the run's
            label. What it raises stops the run, as an interrupt would, and is raised here.

    A sweep gives `Results`, as it did before there was `sweep`.

    Raises:
        ConfigError: the experiment is not valid.
        DataError: its data is missing or damaged.
        OutputError: the folder holds another experiment.
        SimulationError: the server or dispatcher of a single run broke its contract.
        ClusterError: a Dask cluster cannot be reached, has another version of fredsim, or was lost.
        KeyboardInterrupt: it was interrupted. After a first interrupt, what was done is recorded, and a checkpoint is
            written from which the same call continues a single run, and `resume=True` a sweep.
        SystemExit: it was asked to end, by SIGTERM; likewise.

    """
    _flags(resume=resume, keep_checkpoints=keep_checkpoints, allow_code=allow_code, progress=progress)
    policy = CheckpointPolicy(checkpoint, keep_checkpoints)
    how = {"root": _given(data_root, "data_root"), "resume": resume, "jobs": jobs, "dask": dask, "policy": policy}
    with code_allowed(allow_code):
        return cast(Result, _run(open_expansion(source, overrides), _given(out, "out"), how, on_row, progress=progress))


@brief
def sweep(
    source: Source,
    overrides: Sequence[str] = (),
    out: Folder | None = None,
    *,
    data_root: Folder | None = None,
    resume: bool = False,
    jobs: int | Literal["device"] | None = None,
    dask: str | None = None,
    checkpoint: float = 60.0,
    keep_checkpoints: bool = False,
    allow_code: bool = False,
    progress: bool = False,
    on_row: OnRow | None = None,
) -> Results:
    """Run a sweep, an experiment with `sweep` or `cases`, and return its results.

    Arguments and errors are those of `run`, and

    Args:
        source: as in `run`.
        overrides: as in `run`.
        out: as in `run`.
        data_root: as in `run`.
        resume: skip runs that have finished.
        jobs: how many runs are done in parallel, each in a process of its own; "device": runs with backend cuda are
            done side by side in this process, in the same launches. None: 1.
        dask: the address of a Dask scheduler whose workers do the runs. No bit depends on `jobs` or `dask`.
        checkpoint: as in `run`.
        keep_checkpoints: as in `run`.
        allow_code: as in `run`.
        progress: as in `run`.
        on_row: as in `run`.

    A run that fails does not stop the others: its row in `Results.runs` says why.

    """
    _flags(resume=resume, keep_checkpoints=keep_checkpoints, allow_code=allow_code, progress=progress)
    policy = CheckpointPolicy(checkpoint, keep_checkpoints)
    how = {"root": _given(data_root, "data_root"), "resume": resume, "jobs": jobs, "dask": dask, "policy": policy}
    with code_allowed(allow_code):
        expansion = open_expansion(source, overrides)
        if not expansion.is_sweep:
            raise ConfigError("this is a single run, no sweep; give it sweep or cases, or call fredsim.run")
        return cast(Results, _run(expansion, _given(out, "out"), how, on_row, progress=progress))


def _found(folder: Folder) -> Path:
    """Return the folder that results are read from, also once the current folder is another one."""
    return given_path(folder, "folder").absolute()


def _flags(**given: bool) -> None:
    """Raise ConfigError for an option that is neither true nor false: `"no"` would count as true."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise ConfigError(f"{name} is {shown(value)}; it must be True or False")


def _given(path: Folder | None, what: str) -> Path | None:
    """Return a path that may be given, as `given_path` does."""
    return None if path is None else given_path(path, what)


def _run(
    expansion: Expansion, out: Folder | None, how: Mapping[str, Any], on_row: OnRow | None, *, progress: bool
) -> Result | Results:
    """Do the runs of an expansion; `how`: further arguments of `run_expansion`."""
    if on_row is not None and not callable(on_row):
        raise ConfigError(f"on_row is {shown(on_row)}; it must be a function, which takes a dict")
    with _interruptible() as stop:
        monitor = Monitor()
        if progress:
            from fredsim.show.progress import make_monitor

            monitor = make_monitor()
        rows = None if on_row is None else RowMonitor(monitor, on_row, stop)
        try:
            return _public(run_expansion(expansion, out, monitor=cast(Monitor, rows or monitor), stop=stop, **how))
        finally:
            if rows is not None and rows.error is not None:
                raise rows.error from None


@contextmanager
def _interruptible() -> Iterator[Stop]:
    """Stop soon after an interrupt, whose exception then leaves in the place of a result, or of another error."""
    stop, ended = Stop(), None
    try:
        with stop_on_interrupt() as stop:
            yield stop
    except BaseException as error:
        ended = error
        raise
    finally:
        if stop.asked_by is not None:
            asked = SystemExit(128 + signal.SIGTERM) if stop.asked_by == signal.SIGTERM else KeyboardInterrupt()
            raise asked from (ended if isinstance(ended, FredsimError) else None)


@brief
def load(folder: Folder, *, as_found: bool = False) -> Result | Results:
    """Return the results in the folder of a run, a `Result`, or of a sweep, `Results`; `as_found` as in `Result`.

    Raises OutputError if the folder holds no results.
    """
    return _public(recorded.load(given_path(folder, "folder"), as_found=as_found), as_found=as_found)


def _public(loaded: recorded.Result | recorded.Results, *, as_found: bool = False) -> Result | Results:
    if isinstance(loaded, recorded.Result):
        return _taken(loaded, as_found=as_found)
    return Results(loaded.folder, as_found=as_found)


def _taken(loaded: recorded.Result, *, as_found: bool) -> Result:
    """Return a run's result as users have it, with the summary if that has been read."""
    result = Result(loaded.folder, as_found=as_found)
    if "summary" in vars(loaded):
        result.summary = loaded.summary
    return result
