"""The `fredsim` command: it parses its arguments, and calls the functions that do the work."""

# No `from __future__ import annotations`: Typer reads the annotations of all commands, and would evaluate each text.

import signal
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any

import typer

from fredsim.data.kept import own_data_read_anew
from fredsim.errors import FredsimError, options_are
from fredsim.plugins.exits import exits_raise, watched
from fredsim.show import command_options as option
from fredsim.show.terminal import INTERRUPTED, NOT_READ, Group, print_error, say, say_lines, say_message, say_wrapped
from fredsim.system.environment import (
    LenientStream,
    check_surroundings,
    kept,
    shut_output,
    take_any_letter,
    without_threads,
    wrong_surroundings,
)
from fredsim.system.memory import importing
from fredsim.system.notices import notes_as_lines

app = typer.Typer(
    name="fredsim",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A deterministic simulator of asynchronous and synchronous distributed training.",
)


@app.callback()
def _fredsim(version: option.Version = False) -> None:
    """Take the options before the command."""
    del version


@app.command()
def run(
    file: option.File,
    overrides: option.Overrides = None,
    out: option.Out = None,
    jobs: option.Jobs = None,
    dask: option.Dask = None,
    resume: option.Resume = False,
    checkpoint: option.CheckpointSeconds = 60.0,
    keep_checkpoints: option.KeepCheckpoints = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, note, table or plot.")] = False,
    data_root: option.Root = None,
    allow_code: option.AllowCode = False,
) -> None:
    """Run an experiment or a sweep."""
    del allow_code  # its callback has allowed it
    from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
    from fredsim.runs.many.runner import run_expansion
    from fredsim.runs.single.opening import open_expansion
    from fredsim.show.printing import print_ending, print_results
    from fredsim.show.progress import make_monitor

    expansion = open_expansion(file, overrides or [])
    monitor = None if quiet else make_monitor()
    policy = CheckpointPolicy(checkpoint, keep_checkpoints)
    try:
        loaded = run_expansion(
            expansion, out, root=data_root, resume=resume, jobs=jobs, dask=dask, policy=policy, monitor=monitor,
            remarks=not quiet,
        )  # fmt: skip
        if not quiet:
            with kept(loaded.folder):
                print_results(expansion, loaded, data_root)
    except KeyboardInterrupt:
        say("interrupted; continue with the same command and --resume", err=True)
        raise
    raise typer.Exit(print_ending(expansion, loaded))


@app.command()
def live(
    file: option.File,
    overrides: option.Overrides = None,
    out: option.Out = None,
    workers: Annotated[
        int | None, option.Count("--workers", help="Processes on this machine (default: one per processor).")
    ] = None,
    dask: option.Dask = None,
    delay: Annotated[float, option.Number("--delay", help="Mean seconds slept before each computation.")] = 0.0,
    checkpoint: option.CheckpointSeconds = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, note or table.")] = False,
    data_root: option.Root = None,
    allow_code: option.AllowCode = False,
) -> None:
    """Run an experiment with real clients, on workers; `verify` replays it in the simulator."""
    from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
    from fredsim.runs.live.live import run_live
    from fredsim.runs.single.opening import open_expansion
    from fredsim.show.printing import print_ending, print_results
    from fredsim.show.progress import make_monitor

    del allow_code
    expansion = open_expansion(file, overrides or [])
    monitor = None if quiet else make_monitor()
    policy = CheckpointPolicy(checkpoint)
    result = run_live(
        expansion, out, root=data_root, workers=workers, dask=dask, delay=delay, policy=policy, monitor=monitor,
        remarks=not quiet,
    )  # fmt: skip
    if not quiet:
        with kept(result.folder):
            print_results(expansion, result, data_root)
    raise typer.Exit(print_ending(expansion, result))


@app.command()
def calibrate(
    folder: Annotated[Path, typer.Argument(parser=option.path, help="The folder of a live run.")],
    predict: option.Predict = None,
    out: option.PredictOut = None,
    data_root: option.Root = None,
    allow_code: option.AllowCode = False,
) -> None:
    """Fit a clock to a live run; print its `dispatcher:` block, and its predictions beside the measurements."""
    del allow_code
    from fredsim.show.calibrating import print_calibrated

    print_calibrated(folder, predict or [folder], data_root, out)


@app.command()
def show(file: option.File, overrides: option.Overrides = None, allow_code: option.AllowCode = False) -> None:
    """Print the resolved experiment, or each run of a sweep, without running anything."""
    del allow_code
    with importing():
        from fredsim.config.document import dump_yaml
        from fredsim.runs.single.opening import open_expansion
        from fredsim.show.catalogue.descriptions import explain_nulls

    expansion = open_expansion(file, overrides or [])
    for number, run in enumerate(expansion.runs):
        if expansion.is_sweep:
            if number:
                say("---")
            say(f"# {run.label}")
        say_lines(explain_nulls(dump_yaml(run.experiment.plain()), run.experiment))


@app.command()
def plan(
    file: option.File,
    overrides: option.Overrides = None,
    data_root: option.Root = None,
    allow_code: option.AllowCode = False,
) -> None:
    """Estimate what each run would take: path, memory, bytes, and a time measured by running its beginning."""
    del allow_code
    from fredsim.runs.many.remarks import remark_before
    from fredsim.runs.plan.estimates import estimate
    from fredsim.runs.single.opening import open_expansion
    from fredsim.show.printing import print_estimates

    runs = open_expansion(file, overrides or []).runs
    print_estimates(estimate(runs, data_root), len(runs))
    remark_before(runs, data_root)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(parser=option.path, help="A run's folder, or a sweep's.")],
    backend: option.OtherBackend = None,
    jobs: Annotated[
        int, option.Count("--jobs", help="Runs, or pieces of them between kept checkpoints, done in parallel.")
    ] = 1,
    data_root: option.Root = None,
    allow_code: option.AllowCode = False,
) -> None:
    """Run again from the saved configuration and compare every bit; exit code 1 if one differs."""
    del allow_code
    from fredsim.show import comparing

    tell = comparing.Teller()
    comparing.verify(tell, folder, jobs, data_root, backend)
    raise typer.Exit(int(tell.different))


@app.command()
def compare(
    one: Annotated[Path, typer.Argument(parser=option.path, help="The folder of a run.")],
    other: Annotated[Path, typer.Argument(parser=option.path, help="The folder of another run.")],
    replay: Annotated[bool, typer.Option(help="Run again what differs, to find the first event that differs.")] = True,
    data_root: option.Root = None,
    allow_code: option.AllowCode = False,
) -> None:
    """Say where two runs first differ, bit for bit; exit code 1 if they do."""
    del allow_code
    from fredsim.show import comparing

    tell = comparing.Teller()
    comparing.compare(tell, one, other, data_root, replay=replay)
    raise typer.Exit(int(tell.different))


@app.command()
def plot(
    context: typer.Context,
    folders: option.Folders,
    output: option.FigureFile = None,
    kind: option.FigureKind = "curves",
    by: option.By = None,
    panel: option.InPanel = None,
    x: option.XAxis = None,
    y: option.YAxis = "validation_error",
    reach: option.Reach = None,
    where: option.Where = None,
    best: option.Best = False,
    log: option.Logarithmic = None,
    quartiles: option.Quartiles = False,
    clients: option.SomeClients = None,
    begin: option.Begin = None,
    end: option.End = None,
    title: option.Title = "",
    style: option.FigureStyle = None,
    caption: option.Caption = None,
    latex: option.Latex = False,
    data_root: option.Root = None,
    allow_code: option.AllowCode = False,
) -> None:
    """Draw recorded runs, and write and print the table that goes with the figure.

    Given only a folder, without options, draw its experiment's own figures again, in that folder.
    """
    from fredsim.config.figures.options import Options
    from fredsim.show.printing import print_plot

    del allow_code
    options = Options(
        by=by, panel=[] if panel == ["none"] else panel, x=x, y=y, reach=reach or (), best=best, log=log,
        quartiles=quartiles, clients=clients, begin=begin, end=end, title=title, style=style, data_root=data_root,
        caption=style is None if caption is None else caption,
        where=option.collect_where(where or ()),
    )  # fmt: skip
    raise typer.Exit(print_plot(context, folders, output, kind, options, latex=latex))


@app.command()
def report(
    folders: option.Folders,
    output: option.ReportFile = Path("report.html"),
    by: option.By = None,
    panel: option.InPanel = None,
    log: Annotated[bool, typer.Option("--log", help="Begin with a logarithmic y axis.")] = False,
) -> None:
    """Write one page about recorded runs that needs no network: tables, interactive curves, configuration, digests."""
    from fredsim.show.report import report as write

    write(folders, output, by, [] if panel == ["none"] else panel, log=log)
    say(output)


@app.command("export")
def export_(
    folders: option.Folders,
    to: option.ExportTo,
    output: option.ExportFile = None,
) -> None:
    """Write recorded runs for TensorBoard or MLflow; a run that is already there is not written twice."""
    from fredsim.show.export import export

    for name, outcome in export(folders, to, output):
        say(f"{outcome}: {name}")


@app.command()
def cite(file: option.File, overrides: option.Overrides = None, allow_code: option.AllowCode = False) -> None:
    """Print BibTeX entries for what an experiment, or a folder of results, uses: fredsim, methods, data, models."""
    del allow_code
    from fredsim.show.catalogue.citing import bibtex_of

    say_lines(bibtex_of(file, overrides or []))


@app.command("reproduce")
def reproduce_(
    paper: option.Paper,
    only: Annotated[str, typer.Option(help="Some of its experiments: NAME,NAME.")] = "",
    jobs: Annotated[int, option.Count("--jobs", help="Runs done in parallel, each in a process.")] = 1,
    out: option.Out = None,
    data_root: option.Root = None,
) -> None:
    """Run a paper's experiments, draw their figures, and compare published numbers with the results.

    Runs that have finished are not repeated: after an interrupt, the same command continues.
    """
    from fredsim.reproduce import reproduce

    names = [name for name in only.split(",") if name]
    raise typer.Exit(reproduce(paper, names, jobs, out, data_root))


@app.command("list")
def list_(
    what: option.Listed = None,
) -> None:
    """List the names that an experiment may use: what they are, hyper-parameters with defaults, and sources."""
    from fredsim.show.catalogue.names import list_text, names_by_kind, pages_of

    if what is None or what in names_by_kind():
        say_wrapped(list_text(what))
    elif pages := pages_of(what):
        say_wrapped("\n".join(pages))
    else:
        from fredsim.show.catalogue.descriptions import describe

        say_wrapped(describe(what))


@app.command()
def new(
    context: typer.Context,
    file: option.NewFile = Path("experiment.yaml"),
    server: option.NewServer = "asgd",
    data: option.NewData = "digits",
    own: option.NewOwn = None,
) -> None:
    """Write a commented experiment to start from; a file that is there is not overwritten."""
    from fredsim.show.starting import write_experiment

    if file.name in {"", ".."}:
        from fredsim.errors import ConfigError

        raise ConfigError(f"{file} is a folder; name the file to write, such as {file / 'experiment.yaml'}")
    path = file if file.suffix in {".yaml", ".yml"} else file.with_name(f"{file.name}.yaml")
    for written in write_experiment(path, server, data, own, option.given_options(context)):
        say(written)


@app.command()
def ls(folder: option.Here = Path("results")) -> None:
    """List the results in a folder: what, when, how far, and the best run; it runs nothing and changes nothing."""
    with importing(), without_threads():
        from fredsim.show.overview import print_overview

    print_overview(folder)


@app.command()
def schema() -> None:
    """Print the JSON Schema of an experiment's file, with which editors complete and check its keys."""
    from fredsim.config.shipped import shipped_schema

    if (text := shipped_schema()) is None:
        from fredsim.config.schema.experiments import as_text

        text = as_text()
    say_lines(text)


@own_data_read_anew
def main() -> None:
    """Run the command.

    A FredsimError, or an error of the surroundings (no memory, a full disk), prints one message and exits with code 2;
    an interrupt exits with code 130, and with 141 if whoever reads the output has read enough.
    """
    take_any_letter(sys.stdout)
    # A shell script ignores it in its background jobs, and `command` leaves it to the system.
    if signal.getsignal(signal.SIGINT) in {signal.SIG_IGN, signal.SIG_DFL}:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    lenient: Any = sys.stderr and LenientStream(sys.stderr)
    with (
        redirect_stderr(lenient), options_are(on_command_line=True), notes_as_lines(_print_note), exits_raise(),
        watched(),
    ):  # fmt: skip
        try:
            try:
                check_surroundings()
                app()
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except FredsimError as error:
            print_error(*error.args)
            shut_output()
            sys.exit(2)
        except KeyboardInterrupt:
            say("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # whoever reads the output has read enough
            shut_output()
            sys.exit(NOT_READ)
        except (OSError, MemoryError, ImportError, RuntimeError) as error:
            if (what := wrong_surroundings(error)) is None:
                raise
            say(f"error: {what}", err=True)
            shut_output()
            sys.exit(2)


def _print_note(text: str) -> None:
    say_message("note", text)
