"""The `fredsim` command: it parses and hands over, no more."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fredsim.errors import FredsimError

app = typer.Typer(
    name="fredsim",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A deterministic simulator of asynchronous and synchronous distributed training.",
)

File = Annotated[
    str, typer.Argument(help="A YAML file, or an experiment that comes with fredsim, such as `quickstart`.")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, dotted keys, YAML values: server.lr=0.01")]
Root = Annotated[
    Path | None, typer.Option("--data-root", help="Where data files are kept [FREDSIM_DATA, else the user's cache].")
]


class What(StrEnum):
    """What `fredsim list` can list."""

    servers = "servers"
    dispatchers = "dispatchers"
    gates = "gates"
    compressors = "compressors"
    schedules = "schedules"
    models = "models"
    datasets = "datasets"
    experiments = "experiments"


@app.command()
def run(
    file: File,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The folder of results [results/NAME].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip the runs of a sweep that have finished.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, table or plot.")] = False,
    data_root: Root = None,
) -> None:
    """Run an experiment or a sweep."""
    from fredsim.plan import expand, open_source
    from fredsim.progress import make_observer
    from fredsim.results import Result
    from fredsim.runner import run_plan

    plan = expand(open_source(file), overrides or [])
    observer = None if quiet else make_observer(Console(stderr=True))
    loaded = run_plan(plan, out, root=data_root, resume=resume, observer=observer)
    results = [loaded] if isinstance(loaded, Result) else list(loaded)
    if not quiet:
        from fredsim.plot import plot_error

        figure = loaded.folder / "error.png"
        plot_error(results, figure, plan.name)
        console = Console()
        console = console if console.is_terminal else Console(width=160)  # a pipe or a file has no edge to wrap at
        console.print(_table(results))
        typer.echo(f"results: {loaded.folder}\nfigure:  {figure}")
    if any(result.summary["status"] == "interrupted" for result in results) or len(results) < len(plan.runs):
        raise typer.Exit(130)


@app.command()
def show(file: File, overrides: Overrides = None) -> None:
    """Print the resolved experiment, or each run of a sweep; run nothing."""
    from fredsim.document import dump_yaml
    from fredsim.plan import expand, open_source

    plan = expand(open_source(file), overrides or [])
    for number, planned in enumerate(plan.runs):
        if plan.is_sweep:
            typer.echo(f"{'---' if number else ''}\n# {planned.label}".lstrip())
        typer.echo(dump_yaml(planned.experiment.plain()), nl=False)


@app.command()
def plan(file: File, overrides: Overrides = None, data_root: Root = None) -> None:
    """Say what each run would take: path, memory, bytes, and a time measured on a short stretch of it."""
    from fredsim.forecast import forecast
    from fredsim.plan import expand, open_source

    planned = expand(open_source(file), overrides or [])
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "path", "iterations", "live", "memory", "pushed", "fetched", "time"):
        table.add_column(name, justify="left" if name in {"run", "path"} else "right", overflow="fold")
    console = Console(stderr=True)
    found = []
    with console.status("measuring …") if console.is_terminal else nullcontext():
        for run in forecast(planned, data_root):
            found.append(run)
            sizes = (_bytes(size) for size in (run.memory, run.pushed, run.fetched))
            live, took = f"{run.holdings:,} {LIVE[run.path]}", _time(run.seconds)
            table.add_row(run.label, run.path, f"{run.iterations:,}", live, *sizes, took)
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    console.print(table)
    for path, why in dict.fromkeys((run.path, run.why) for run in found):
        typer.echo(f"{path}: {why}")
    typer.echo(f"{len(found)} runs, {_time(sum(run.seconds for run in found))} one after the other")


LIVE = {"hand": "works", "fused": "versions", "snapshots": "versions"}


def _bytes(size: float) -> str:
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, max(0, math.floor(math.log10(max(size, 1)) / 3)))
    return f"{size / 1000**power:.3g} {units[power]}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a sweep's.")],
    backend: Annotated[str | None, typer.Option(help="Run on this backend instead of the recorded one.")] = None,
    data_root: Root = None,
) -> None:
    """Run again from the saved configuration and compare every bit; exit code 1 where one differs."""
    from fredsim.progress import make_observer
    from fredsim.verify import results_of
    from fredsim.verify import verify as run_again

    different = False
    for result in results_of(folder):
        root = str(data_root) if data_root else None
        found = run_again(result, root=root, backend=backend, observer=make_observer(Console(stderr=True)))
        different |= found is not None
        typer.echo(f"{result.folder}: {'same bits' if found is None else f'different: {found}'}")
    raise typer.Exit(int(different))


@app.command()
def compare(one: Path, other: Path) -> None:
    """Say where two runs first differ, bit for bit; exit code 1 where they do."""
    from fredsim.verify import difference, results_of

    left, right = results_of(one), results_of(other)
    if len(left) != len(right):
        typer.echo(f"different: {one} holds {len(left)} runs, {other} holds {len(right)}")
        raise typer.Exit(1)
    different = False
    for a, b in zip(left, right, strict=True):
        found = difference(a, b)
        different |= found is not None
        typer.echo(f"{a.folder} and {b.folder}: {'same bits' if found is None else f'different: {found}'}")
    raise typer.Exit(int(different))


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs or sweeps.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A PDF, SVG or PNG file.")] = Path("error.pdf"),
    title: Annotated[str, typer.Option(help="The figure's title.")] = "",
) -> None:
    """Draw validation error against iterations, a line a run."""
    from fredsim.plot import plot_error
    from fredsim.verify import results_of

    plot_error([result for folder in folders for result in results_of(folder)], output, title)
    typer.echo(output)


@app.command("list")
def list_(what: Annotated[What | None, typer.Argument(help="One kind only.")] = None) -> None:
    """List what there is: names, what they are, their hyper-parameters with defaults, their sources."""
    from fredsim.listing import LISTINGS

    for kind in [what] if what else What:
        if not what:
            typer.echo(f"{kind}:")
        for name, lines in LISTINGS[kind]():
            for number, line in enumerate(lines):
                typer.echo(f"{'' if what else '  '}{name if number == 0 else '':<19} {line}")


def _table(results: list[Any]) -> Table:
    from fredsim.plot import labels

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("status", "iterations", "valid. error", "test error", "iter./s", "digest"):
        table.add_column(name, justify="left" if name in {"status", "digest"} else "right", no_wrap=True)
    for result, label in zip(results, labels(results), strict=True):
        s = result.summary
        errors = ["-" if s[key] is None else f"{s[key]:.4f}" for key in ("validation_error", "test_error")]
        rate = f"{s['iterations_per_second']:,.0f}"
        table.add_row(label, s["status"], str(s["iterations"]), *errors, rate, s["digest"][:12])
    return table


def main() -> None:
    """Run the command; an error on purpose is one message and exit code 2, an interrupt 130."""
    try:
        app()
    except FredsimError as error:
        for line in str(error).splitlines():
            typer.echo(f"error: {line}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
