"""`fredsim reproduce`: runs a paper's experiments one after another, and compares them with published points."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fredsim.config.shipped import shipped
from fredsim.config.sweep.expansion import Expansion, ResolvedRun
from fredsim.errors import ConfigError, FredsimError, nearest, warn
from fredsim.runs.folder.results import Result, Results
from fredsim.runs.many.resuming import reason_to_run
from fredsim.runs.many.runner import check_jobs, run_expansion
from fredsim.runs.plan.estimates import estimate
from fredsim.runs.single.opening import open_expansion
from fredsim.show.console import PlainConsole, print_table
from fredsim.show.printing import duration, print_ending, print_results
from fredsim.show.progress import make_monitor
from fredsim.show.tables import PUBLISHED, Table
from fredsim.show.terminal import INTERRUPTED, print_error, say
from fredsim.system.given import real_path
from fredsim.system.limits import default_threads

__all__ = ["reproduce"]


def reproduce(paper: str, only: Sequence[str], jobs: int, out: Path | None, root: Path | None) -> int:
    """Do the remaining runs of a paper's experiments, print and draw the results, and return the exit code.

    Args:
        paper: the name of a folder of experiments that comes with fredsim, or the path of a folder of YAML files.
        only: the names of the experiments to run; empty: all.
        jobs: how many runs are done in parallel.
        out: the folder of results, with a folder for each experiment; None: results/PAPER.
        root: where data files are kept; see fredsim.data.datasets.data_root.

    An experiment that fails is told, and does not stop the others. Raises ConfigError if there is no such paper or
    experiment, and what is wrong with an experiment before its runs.

    """
    check_jobs(jobs)
    items = _items(paper, only, out)
    console = PlainConsole(stderr=True)
    rows, expected = [], 0.0
    with console.status("measuring …") if console.is_terminal else nullcontext() as status:

        def measuring(item: Item) -> None:
            what = f"measuring {item.name} …"
            say(what, err=True) if status is None else status.update(what)

        for item, left, seconds in _estimates(items, root, jobs, measuring):
            rows.append(
                {
                    "experiment": item.name,
                    "runs": len(item.expansion.runs),
                    "left": left,
                    "time": "unknown" if seconds is None else duration(seconds),
                }
            )
            expected += seconds or 0.0
    print_table(Table(rows).printed())
    say(f"about {duration(expected)}, {jobs} run{'s' if jobs > 1 else ''} at a time")
    code, took = 0, []
    for item in items:
        say("")
        say(f"{paper}/{item.name}")
        began = time.perf_counter()
        try:
            ended = _do(item, jobs, root)
        except FredsimError as error:
            print_error(*error.args)
            ended = 2
        code = max(code, ended)
        if code == INTERRUPTED:
            break
        took.append(f"{item.name} {duration(time.perf_counter() - began)}")
    if took:
        say("")
        say(f"took: {', '.join(took)}")
    return code


def _do(item: Item, jobs: int, root: Path | None) -> int:
    """Do the remaining runs of an experiment, print and draw its results, and return the exit code."""
    loaded: Result | Results
    if item.expansion.is_sweep or item.left(root):
        monitor = make_monitor()
        of_sweep = jobs if item.expansion.is_sweep else None
        loaded = run_expansion(item.expansion, item.folder, root=root, resume=True, jobs=of_sweep, monitor=monitor)
    else:
        loaded = Result(item.folder)
    code = print_ending(item.expansion, loaded, "the same command")
    if code != INTERRUPTED:
        compared = [table for table in print_results(item.expansion, loaded, root) if table.title == PUBLISHED]
        for table in compared[:1]:  # other figures have the same points
            print_table(table.printed())
    return code


@dataclass(frozen=True)
class Item:
    """One experiment of a paper, and the folder of its results."""

    name: str
    expansion: Expansion
    folder: Path

    def left(self, root: str | os.PathLike[str] | None) -> list[ResolvedRun]:
        """Return the runs that have not been done yet, with the data files in `root`."""
        runs = self.expansion.runs
        folders = [self.folder / run.folder_name if self.expansion.is_sweep else self.folder for run in runs]
        each = zip(runs, folders, strict=True)
        return [run for run, folder in each if reason_to_run(folder, run.experiment, root) is not None]


def _items(paper: str, only: Sequence[str], out: Path | None) -> list[Item]:
    """Return the experiments of a paper: those in the folder at this path, or those that come with fredsim.

    Raises ConfigError if there is no such paper, or if it has no experiment of a name in `only`.
    """
    within = Path(paper).iterdir() if os.path.isdir(paper) else ()
    files = sorted(path for path in within if path.suffix in {".yaml", ".yml"})
    papers = sorted({name.partition("/")[0] for name in shipped() if "/" in name})
    if files and paper in papers:
        what = f"{paper}: is the folder {real_path(paper)}, not the paper of this name that comes with fredsim"
        warn(f"{what}; rename the folder, or change into another one, for that")
    if not files:
        if paper not in papers:
            known = f"known: {', '.join(papers)}; or name a folder of YAML files"
            raise ConfigError(f"'{paper}' is no paper with built-in experiments{nearest(paper, papers)} ({known})")
        files = [path for path in shipped().values() if path.parent.name == paper]
    names = [file.stem for file in files]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        both = f"{twice[0]}.yaml and {twice[0]}.yml"
        raise ConfigError(f"{paper}: has {both}, whose results would be in the same folder; rename one")
    for name in only:
        if name not in names:
            raise ConfigError(f"--only: {paper} has no '{name}'{nearest(name, names)} (known: {', '.join(names)})")
    folder = out or Path("results") / real_path(paper).name
    expansions = {file.stem: open_expansion(file) for file in files if not only or file.stem in only}
    return [Item(name, expansion, folder / name) for name, expansion in expansions.items()]


def _estimates(
    items: Sequence[Item], root: str | os.PathLike[str] | None, jobs: int, measuring: Callable[[Item], object]
) -> Iterator[tuple[Item, int, float | None]]:
    """Yield each experiment, how many of its runs remain, and how many seconds these will take, `jobs` in parallel.

    The seconds are None if a run fails while it is measured: it will be told when it is done. Each kind of run is
    measured on as many threads as it will have; `measuring` is called with each experiment before.
    """
    measured: dict[str, dict[str, Any]] = {}
    processors = default_threads()
    for item in items:
        left = item.left(root)
        if left:
            measuring(item)
        together = min(jobs, processors, max(1, len(left)))
        threads = processors // together if together > 1 else None
        try:
            estimates = estimate(left, root, threads=threads, measured=measured, rough=True)
            seconds = [run.seconds for run in estimates]
        except FredsimError:
            yield item, len(left), None
        else:
            yield item, len(left), max(sum(seconds) / together, max(seconds, default=0.0))
