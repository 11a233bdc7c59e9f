"""Arguments and options that several commands share; which of them were given, and the command line that gives them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fredsim.show.catalogue import completion
from fredsim.show.own_templates import OWN
from fredsim.show.terminal import say
from fredsim.system.environment import without_threads
from fredsim.system.given import at_home
from fredsim.system.memory import importing


def collect_where(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values given for each key in several KEY=VALUE, as lists. Raises ConfigError.

    A list is its elements or, among several values of one key, also itself, as of `model.hidden`.
    """
    from fredsim.config.document import parse_override

    given: dict[str, list[Any]] = {}
    for key, value in map(parse_override, texts):
        given.setdefault(key, []).append(value)
    found: dict[str, list[Any]] = {}
    for key, values in given.items():
        parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
        lists = [value for value in values if isinstance(value, list)] if len(values) > 1 else []
        found[key] = [*parts, *lists]
    return found


def path(text: str | Path) -> Path:
    """Return a path, with the home folder for ~; refuse an empty one, which Path takes for the current folder."""
    if not str(text):
        raise typer.BadParameter("it is empty; name a folder or a file")
    return at_home(text)


def _print_version(requested: bool) -> None:
    if requested:
        from fredsim.system.version import fredsim_version

        say(f"fredsim {fredsim_version()}")
        raise typer.Exit


def _kinds_of_own(incomplete: str) -> list[str]:
    """Offer what `fredsim new --own` writes."""
    return [kind for kind in OWN if kind.startswith(incomplete)]


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and exit.")
]
File = Annotated[
    str,
    typer.Argument(
        help="A YAML file, or an experiment that comes with fredsim, such as `quickstart`.",
        autocompletion=completion.experiments,
    ),
]
Folders = Annotated[list[Path], typer.Argument(parser=path, help="Folders of runs or sweeps.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="KEY=VALUE, dotted keys, YAML values: server.lr=0.01", autocompletion=completion.settings),
]


def _number(kind: type[int] | type[float], text: str | float) -> float | None:
    """Return a number as Python writes it, or a default; None for any other text: 1_000 and digits of other scripts."""
    if isinstance(text, str) and ("_" in text or not text.isascii()):
        return None
    with suppress(ValueError):
        return kind(text)
    return None


def _parsed(kind: type[int] | type[float], what: str) -> Callable[..., Any]:
    """Return a `typer.Option` for numbers, with fredsim's own message for a text that is not a number."""

    def parse(text: str | float) -> float:
        if (number := _number(kind, text)) is None:
            raise typer.BadParameter(f"'{text}' is no {what}")
        return number

    return partial(typer.Option, parser=parse, metavar={int: "INTEGER", float: "FLOAT"}[kind])


Count, Number = _parsed(int, "whole number"), _parsed(float, "number")


def _jobs(text: str) -> int | str:
    """Return how runs of a sweep are done in parallel: a number of processes, or `device`."""
    if text == "device":
        return text
    if (number := _number(int, text)) is None:
        raise typer.BadParameter(f"'{text}' is neither a whole number nor `device`")
    return int(number)


Jobs = Annotated[
    Any,  # fredsim.runs.many.tasks.Jobs
    typer.Option(
        "--jobs",
        parser=_jobs,
        metavar="INTEGER|device",
        help="Runs of a sweep done in parallel, each in a process; device: side by side on a CUDA device (default: 1).",
    ),
]
PathOption = partial(typer.Option, parser=path)
OutputFile = partial(PathOption, "-o", "--output", "--out")
Root = Annotated[
    Path | None, PathOption("--data-root", help="Where data files are kept (FREDSIM_DATA, else the user's cache).")
]
Out = Annotated[
    Path | None,
    PathOption(
        "--out",
        help="The folder of results (default: results/NAME; live: results/NAME-live; reproduce: results/PAPER).",
    ),
]
CheckpointSeconds = Annotated[float, Number("--checkpoint", help="Seconds between two checkpoints; 0: none.")]
Dask = Annotated[str | None, typer.Option("--dask", help="The address of a Dask scheduler whose workers compute.")]
KeepCheckpoints = Annotated[
    bool, typer.Option("--keep-checkpoints", help="Keep them all, for `verify --jobs` and `compare`.")
]


def _allow_code(context: typer.Context, allowed: bool) -> bool:
    """Allow, or do not allow, to run code that a folder of results names."""
    with importing(), without_threads() if context.info_name == "show" else nullcontext():  # the others compute
        from fredsim.plugins.modules import allow_code

    allow_code(allowed)
    return allowed


AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        callback=_allow_code,
        help="Run code that a folder of results names, even if you did not run it here.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Skip runs that have finished or diverged.")]
By = Annotated[
    list[str] | None,
    typer.Option(
        help="Key whose values make a line (all that differ but seed).", autocompletion=completion.of_experiment
    ),
]
InPanel = Annotated[
    list[str] | None,
    typer.Option(help="Key whose values make a panel (λ and µ); none: one.", autocompletion=completion.of_experiment),
]
FigureFile = Annotated[
    Path | None,
    OutputFile(help="A PDF, SVG or PNG file, for a timeline also JSON (default: error.pdf, or the kind's name)."),
]
FigureKind = Annotated[
    str,
    typer.Option(
        help="curves, ends, matrix, staleness, copies, probe, tensors, shards, timeline, waits.",
        autocompletion=completion.kinds,
    ),
]
XAxis = Annotated[
    str | None,
    typer.Option(
        "--x",
        help="iterations, updates, bytes, seconds; for ends also pushes, fetches, a key.",
        autocompletion=completion.units,
    ),
]
YAxis = Annotated[
    str,
    typer.Option(
        "--y",
        help="validation_error, validation_loss, train_loss, or another column.",
        autocompletion=completion.columns,
    ),
]
Reach = Annotated[list[float] | None, Number("--reach", help="The table says when this y was reached.")]
SomeClients = Annotated[
    str | None, typer.Option("--clients", help="For timeline and waits: which clients, such as 0-7 or 0,4,9.")
]
Begin = Annotated[float | None, Number("--from", help="For timeline and waits: from this simulated second.")]
End = Annotated[
    float | None, Number("--to", help="For timeline and waits: to this simulated second; for curves: to this x.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="KEY=VALUE: only runs with this value, or one of several for a key.",
        autocompletion=completion.settings,
    ),
]
Best = Annotated[bool, typer.Option("--best", help="Only the runs that the experiment's `select` chose.")]
Logarithmic = Annotated[
    bool | None,
    typer.Option("--log/--linear", help="The y axis; by default it is logarithmic if values span a factor of 5."),
]
Quartiles = Annotated[
    bool, typer.Option("--quartiles", help="For curves: bands from the lower to the upper quartile of the runs.")
]
Title = Annotated[str, typer.Option(help="The figure's title.")]
FigureStyle = Annotated[
    str | None,
    typer.Option(
        "--style",
        help="For a paper: as wide as its `column`, or as both on a `page`.",
        autocompletion=completion.styles,
    ),
]
Caption = Annotated[
    bool | None,
    typer.Option("--caption/--no-caption", help="Write the caption into the picture (yes, without --style)."),
]
Latex = Annotated[bool, typer.Option("--latex", help="Write the table as LaTeX, too.")]
NewFile = Annotated[Path, typer.Argument(parser=path, metavar="[NAME]", help="The new file; .yaml is added to a name.")]
NewServer = Annotated[
    str,
    typer.Option(
        "--server", help="Its server: a name, or your own as package.module:Class.", autocompletion=completion.servers
    ),
]
NewData = Annotated[
    str, typer.Option("--data", help="Its data set: a name, or npz:PATH.", autocompletion=completion.datasets)
]
NewOwn = Annotated[
    str | None,
    typer.Option(
        "--own",
        metavar="KIND",
        autocompletion=_kinds_of_own,
        help="Also write a module with something of your own, which it names: a server, loss, metric, dataset, "
        "optimizer, problem or network.",
    ),
]
Here = Annotated[Path, typer.Argument(parser=path, metavar="[DIR]", help="The folder that is looked through.")]
OtherBackend = Annotated[
    str | None,
    typer.Option(help="Run on this backend instead of the recorded one.", autocompletion=completion.backends),
]
ExportTo = Annotated[str, typer.Option("--to", help="tensorboard or mlflow.", autocompletion=completion.targets)]
Paper = Annotated[
    str,
    typer.Argument(
        help="Experiments that come with fredsim, such as fasgd, or your folder of YAML files.",
        autocompletion=completion.papers,
    ),
]
Listed = Annotated[
    str | None,
    typer.Argument(
        help="A kind, such as servers, or a name, such as fasgd, which is explained.",
        autocompletion=completion.listed,
    ),
]
Predict = Annotated[
    list[Path] | None,
    PathOption(help="Live runs for the clock to predict (default: the one that it is fitted to)."),
]
PredictOut = Annotated[
    Path | None,
    PathOption("--out", help="Folder of the predicted runs, and figures of both (default: not kept)."),
]
ReportFile = Annotated[Path, OutputFile(help="An HTML file.")]
ExportFile = Annotated[Path | None, OutputFile(help="A folder (tensorboard), or a SQLite file (mlflow.db).")]


def given_options(context: typer.Context) -> dict[str, Any]:
    """Return the parameters that were given on the command line, by name."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name: context.params[name] for name, found in sources.items() if found and found.name == "COMMANDLINE"}


def command_line(context: typer.Context, parameters: dict[str, Any]) -> str:
    """Return the command line that gives these parameters to this command."""
    arguments = ["fredsim", str(context.info_name)]
    for parameter in context.command.params:
        value = parameters.get(str(parameter.name))
        if isinstance(value, bool):
            arguments.append((parameter.opts if value else parameter.secondary_opts)[0])
        elif value is not None:
            option = [] if parameter.param_type_name == "argument" else parameter.opts[:1]
            for one in value if isinstance(value, list | tuple) else [value]:
                arguments += [*option, str(one)]
    return shlex.join(arguments)
