"""Reads results: `fredsim.load`, for the folder of one run or of a sweep."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from fredsim.config.document import read_document
from fredsim.config.sweep.outline import count_runs
from fredsim.errors import ConfigError, OutputError, brief, option, visible
from fredsim.runs.folder.result import Result, check_inside, result_of
from fredsim.runs.folder.sweep_tables import check_tables, recorded_rows
from fredsim.system.csv_files import TEXT, read_cells, read_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result", "Results", "load", "nothing_ended", "results_of"]


class Results:
    """The results of a sweep's runs that finished or diverged, in order; those that failed are in `failures`."""

    def __init__(self, folder: Path, *, as_found: bool = False) -> None:
        """Take a folder; `as_found` as in `Result`."""
        self.folder, self._as_found = folder, as_found
        failed = {name for name, _ in self.failures}
        self._names: list[str] = [name for name in self.runs["run"] if name not in failed]
        self._digests = dict(zip(self.runs["run"], self.runs.get("digest", ""), strict=False))

    def __iter__(self) -> Iterator[Result]:
        return map(self.__getitem__, range(len(self)))

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Result:
        """Return a run's result. Raises OutputError if its folder is missing, or holds another run than `runs` has."""
        name = self._names[index]
        if not (self.folder / name).is_dir():
            gone = f"{self.folder / 'runs.csv'} names the run {name} whose folder is gone"
            raise OutputError(f"{gone}; {option('resume', 'True')} does it again")
        result = result_of(self.folder, name, as_found=self._as_found)
        if not self._as_found and result.summary["digest"] != self._digests[name]:
            what = f"{result.folder}: holds another run than the one of this name when the table `runs` was read"
            raise OutputError(f"{what}; load {self.folder} anew")
        return result

    def __repr__(self) -> str:
        return f"<Results {visible(str(self.folder))}: {len(self)} runs>"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run: the values of the axes, and how it ended.

        Raises OutputError if a run has two rows, and if runs.csv or best.csv is not what the runs and sweep.yaml give.
        """
        path = self.folder / "runs.csv"
        table = read_table(path, {"run": TEXT})
        if len(twice := table["run"][table["run"].duplicated()]):
            raise OutputError(f"{path}: is damaged (it has the run {twice.iloc[0]} twice); run the experiment again")
        for name in table["run"]:
            check_inside(self.folder, name)
        if not self._as_found and len(table):
            check_tables(self.folder)
        return table

    @cached_property
    def best(self) -> pd.DataFrame:
        """What `select` chose: one row per combination of the other axes. Raises OutputError if best.csv is missing."""
        path = self.folder / "best.csv"
        if not os.path.lexists(path):
            remedy = f"give the experiment `select`, and let all its runs end ({option('resume', 'True')})"
            raise OutputError(f"{path}: is not there; {remedy}")
        return read_table(path, {})

    @property
    def chosen(self) -> list[str]:
        """The names of the runs with the values that `select` chose. Raises OutputError as `best` does."""
        before = takewhile(lambda name: not name.startswith("mean_"), self.best.columns)  # a metric may be named `runs`
        axes = [name for name in before if name in self.runs.columns]
        wanted = {tuple(cells[axis] for axis in axes) for cells in read_cells(self.folder / "best.csv")}
        rows = recorded_rows(self.folder)
        ends = [axis for axis in axes if axis in ("iterations", "updates")]  # in runs.csv these columns are outcomes
        for cells in rows if ends else ():
            if cells["run"] in self._names:
                config = result_of(self.folder, cells["run"]).config
                cells.update({axis: "" if config.get(axis) is None else str(config[axis]) for axis in ends})
        return [cells["run"] for cells in rows if tuple(cells[axis] for axis in axes) in wanted]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The names of the runs that failed, and why each failed."""
        rows = self.runs.to_dict("records")
        return [(row["run"], row["error"]) for row in rows if row.get("status") == "failed"]


@brief
def load(folder: str | os.PathLike[str], *, as_found: bool = False) -> Result | Results:
    """Return the results in the folder of a run or of a sweep; `as_found` as in `Result`.

    Raises OutputError if the folder holds no results.
    """
    folder = Path(folder)
    if os.path.lexists(folder / "runs.csv"):  # which is False for a name that no file can have
        results = Results(folder, as_found=as_found)
        if results.runs.empty:
            what = "names no run: none has ended yet; let one end, or run the experiment again"
            raise OutputError(f"{folder / 'runs.csv'}: {what}")
        return results
    if os.path.lexists(folder / "config.yaml"):
        return Result(folder, as_found=as_found)
    remedy = "name the folder of a run or of a sweep"
    if not os.path.isdir(folder):
        raise OutputError(f"{folder}: is no folder; {remedy}")
    names: list[str] = []
    with suppress(OSError):  # a folder that may not be read
        names = sorted(os.listdir(folder))
    files = ("config.yaml", "runs.csv")
    within = [name for name in names if any(os.path.lexists(folder / name / file) for file in files)]
    if within:
        remedy += f", such as {folder / within[0]} (`fredsim ls {shlex.quote(str(folder))}` lists them)"
    raise OutputError(f"{folder}: holds no results (neither config.yaml nor runs.csv); {remedy}")


def results_of(folder: Path, *, as_found: bool = False) -> list[Result]:
    """Return the result in a run's folder, as a list of one, or all results of a sweep; `as_found` as in `Result`.

    Raises OutputError if there are no results.
    """
    loaded = load(folder, as_found=as_found)
    results = [loaded] if isinstance(loaded, Result) else list(loaded)
    if not results:
        raise nothing_ended(folder)
    return results


def nothing_ended(folder: Path) -> OutputError:
    """Return the error for a sweep all of whose rows are of runs that failed, which may not be all of its runs."""
    failed, left = len(recorded_rows(folder)), 0
    with suppress(ConfigError, OutputError):
        left = count_runs(read_document(folder / "sweep.yaml")) - failed
    if left <= 0:
        return OutputError(f"{folder}: all its runs failed; {folder / 'runs.csv'} says why")
    what = f"{folder}: has no results yet: {failed:,} of its runs failed, as {folder / 'runs.csv'} says"
    return OutputError(f"{what}, and {left:,} did not end; {option('resume', 'True')} does them")
