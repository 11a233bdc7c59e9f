"""A paper's experiments, one after another: how long they will take, their runs, figures and published points."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fredsim.config.expansion import Expansion, ResolvedRun, shipped
from fredsim.errors import ConfigError, nearest
from fredsim.runs.estimates import estimate
from fredsim.runs.opening import open_expansion
from fredsim.runs.results import Result
from fredsim.runs.resuming import to_do
from fredsim.runs.runner import run_expansion
from fredsim.runs.sweep import run_name
from fredsim.show.printing import INTERRUPTED, duration, exit_code, print_table, report
from fredsim.show.progress import make_show
from fredsim.show.tables import PUBLISHED, Table
from fredsim.system.processors import default_threads

__all__ = ["reproduce"]


def reproduce(paper: str, only: Sequence[str], jobs: int, out: Path | None, root: Path | None) -> int:
    """Run what is left of a paper's experiments, print and draw what came out; return the exit code.

    Args:
        paper: a folder of experiments that comes with fredsim, or one of YAML files.
        only: the names of some of them; empty: all.
        jobs: how many runs are done side by side.
        out: the folder of results, with one below it for each experiment; results/PAPER where None.
        root: where data files are kept; see fredsim.data.datasets.data_root.

    Raises ConfigError where there is no such paper or experiment; what `fredsim.run` raises.

    """
    items = _items(paper, only, out)
    console = Console(stderr=True)
    rows, expected = [], 0.0
    if not console.is_terminal:
        typer.echo("measuring …", err=True)
    with console.status("measuring …") if console.is_terminal else nullcontext():
        for item, left, seconds in _estimates(items, root, jobs):
            rows.append(
                {"experiment": item.name, "runs": len(item.expansion.runs), "left": left, "time": duration(seconds)}
            )
            expected += seconds
    print_table(Table(rows).printed())
    typer.echo(f"about {duration(expected)}, {jobs} run{'s' if jobs > 1 else ''} at a time")
    code, took = 0, []
    for item in items:
        typer.echo(f"\n{paper}/{item.name}")
        began = time.perf_counter()
        if item.expansion.is_sweep or item.left():
            show = make_show(console)
            loaded = run_expansion(item.expansion, item.folder, root=root, resume=True, jobs=jobs, show=show)
        else:
            loaded = Result(item.folder)
        code = max(code, exit_code(item.expansion, loaded, "the same command"))
        if code == INTERRUPTED:
            break
        compared = [table for table in report(item.expansion, loaded) if table.title == PUBLISHED]
        for table in compared[:1]:  # other figures of the same points say the same
            print_table(table.printed())
        took.append(f"{item.name} {duration(time.perf_counter() - began)}")
    typer.echo(f"\ntook: {', '.join(took)}")
    return code


@dataclass(frozen=True)
class Item:
    """One experiment of a paper, and the folder of its results."""

    name: str
    expansion: Expansion
    folder: Path

    def left(self) -> list[ResolvedRun]:
        """Return the runs that have not ended."""
        runs = self.expansion.runs
        folders = [self.folder / run_name(run) if self.expansion.is_sweep else self.folder for run in runs]
        return [run for run, folder in zip(runs, folders, strict=True) if to_do(folder, run.experiment) is not None]


def _items(paper: str, only: Sequence[str], out: Path | None) -> list[Item]:
    """Return the experiments of a paper, a folder of those that come with fredsim or of one's own.

    Raises ConfigError where there is no such paper, or none of its experiments has a name in `only`.
    """
    files = sorted(Path(paper).glob("*.yaml")) if os.path.isdir(paper) else []
    if not files:
        papers = sorted({name.partition("/")[0] for name in shipped() if "/" in name})
        if paper not in papers:
            known = f"known: {', '.join(papers)}; or name a folder of YAML files"
            raise ConfigError(
                f"'{paper}' is no paper of which experiments come with fredsim{nearest(paper, papers)} ({known})"
            )
        files = [path for path in shipped().values() if path.parent.name == paper]
    names = [file.stem for file in files]
    for name in only:
        if name not in names:
            raise ConfigError(f"--only: {paper} has no '{name}'{nearest(name, names)} (known: {', '.join(names)})")
    folder = out or Path("results") / Path(paper).resolve().name
    expansions = {file.stem: open_expansion(file) for file in files if not only or file.stem in only}
    return [Item(name, expansion, folder / name) for name, expansion in expansions.items()]


def _estimates(
    items: Sequence[Item], root: str | os.PathLike[str] | None, jobs: int
) -> Iterator[tuple[Item, int, float]]:
    """Yield how many runs of each experiment are left, and how many seconds they will take, `jobs` side by side.

    A stretch of each kind of run is measured on the threads that it will have.
    """
    measured: dict[str, dict[str, Any]] = {}
    processors = default_threads()
    for item in items:
        left = item.left()
        together = min(jobs, processors, max(1, len(left)))
        share = max(1, processors // jobs) if together > 1 else None
        seconds = [run.seconds for run in estimate(left, root, share=share, measured=measured)]
        yield item, len(left), max(sum(seconds) / together, max(seconds, default=0.0))
