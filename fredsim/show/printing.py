"""Prints the output of commands: estimates of runs, tables and figures of runs that have ended, errors."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table as RichTable

from fredsim.config.figures.choice import FigureChoice, recorded_figures
from fredsim.config.figures.options import Options
from fredsim.config.sweep.expansion import Expansion
from fredsim.errors import ConfigError, FredsimError
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.folder.results import Result, Results, results_of
from fredsim.runs.many.remarks import runs_at_chance
from fredsim.show.best import best_of
from fredsim.show.command_options import command_line, given_options
from fredsim.show.console import PlainConsole, print_table
from fredsim.show.distinct import distinct, note_alike
from fredsim.show.lacking import note_lacking
from fredsim.show.tables import AllDigits, Table, write_files
from fredsim.show.terminal import INTERRUPTED, print_error, say
from fredsim.system.memory import format_bytes

if TYPE_CHECKING:
    from fredsim.runs.plan.estimates import Estimate

__all__ = ["draw_figures", "duration", "print_ending", "print_estimates", "print_plot", "print_results"]

MOST_NAMED = 4  # the most runs that a message names


def duration(seconds: float) -> str:
    """Return a duration as text, such as 1.5 min."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


#: What clients hold, by path.
HELD = {"hand": "tasks", "fused": "versions", "queued": "versions", "snapshots": "versions"}


def print_estimates(estimates: Iterable[Estimate], total: int) -> None:
    """Print the estimates of `total` runs, and why their paths were chosen; a terminal shows how far they are."""
    console = PlainConsole(stderr=True)
    found: list[Estimate] = []
    with console.status("measuring …") if console.is_terminal else nullcontext() as status:
        for one in estimates:
            found.append(one)
            if status is not None:
                status.update(f"measuring … {len(found):,} of {total:,} runs")
    timed = any(run.simulated is not None for run in found)
    table = RichTable(box=None, header_style="bold", pad_edge=False)
    of_clock = ("rows", "sim. seconds") if timed else ()
    for name in ("run", "path", "iterations", *of_clock, "live", "memory", "pushed", "fetched", "time"):
        table.add_column(name, justify="left" if name in {"run", "path"} else "right", overflow="fold")
    for run in found:
        about = "" if run.exact else "~"
        simulated = "–" if run.simulated is None else f"{about}{run.simulated:,.6g}"
        by_clock = (f"{'' if run.exact_rows else '~'}{run.rows:,}", simulated) if timed else ()
        sizes = (format_bytes(size) for size in (run.memory, run.pushed, run.fetched))
        held = HELD[run.path] if run.most_held != 1 else HELD[run.path].removesuffix("s")
        live, took = f"{run.most_held:,} {held}", duration(run.seconds)
        shown = f"{about if timed else ''}{run.iterations:,}"
        table.add_row(run.label, run.path, shown, *by_clock, live, *sizes, took)
    print_table(table)
    for path, why in dict.fromkeys((run.path, run.why) for run in found):
        say(f"{path}: {why}")
    if any(run.gated for run in found):
        say("pushed, fetched: at most, before gates")
    if any(run.goal for run in found):
        say("until: all of it at most; a run ends when it is there")
    if own := [(run.seconds, run.as_rule) for run in found if run.as_rule is not None]:
        now, then = map(sum, zip(*own, strict=True))
        what = f"{duration(now)}, and {duration(then)} with asgd in its place"
        remedy = "written as a rule (docs/rules.md), it could take about as little as that"
        say(f"a server of your own: {what}; {remedy}")
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    say(f"{runs}, {duration(sum(run.seconds for run in found))} one after the other")


def print_results(expansion: Expansion, loaded: Result | Results, root: Path | None = None) -> list[Table]:
    """Print a table of the runs that ended, draw their figures, and return the tables of the figures.

    `root` is where data files are kept.
    """
    from fredsim.show import plots

    results = [loaded] if isinstance(loaded, Result) else list(loaded)
    if not results:
        return []
    timed = any(result.timed for result in results)
    rows = [_row(result, label, timed=timed) for result, label in zip(results, plots.labels(results), strict=True)]
    at_chance = {results.index(result) for result in runs_at_chance(expansion, results, root)}
    for number in at_chance:
        rows[number]["status"] = "finished, at chance level"
    print_table(Table(rows).printed(best_of(results) - at_chance))
    note_alike(results)
    for backend, device in sorted({(r.summary["backend"], r.summary["device"] or "") for r in results}):
        say(f"backend: {backend}{device and f', {device}'}")
    for row, result in zip(rows, results, strict=True):
        if row["status"].startswith("finished") and row["iterations"] == 0:
            by_clock = result.summary.get("time", 0) > 0  # or at the first row, whose time is 0
            remedy = "give more seconds" if by_clock else "until holds at the beginning, so give another value"
            say(f"{row['run']}: ended before any gradient arrived; {remedy}")
    if expansion.selection is not None and isinstance(loaded, Results) and os.path.lexists(loaded.folder / "best.csv"):
        title = f"best {', '.join(expansion.selection.axes)} by the mean of {expansion.selection.best}"
        best = loaded.best.astype(object).where(loaded.best.notna(), None)
        rows = [{str(key): value for key, value in row.items()} for row in best.to_dict("records")]
        axes = {*best.columns} & {*loaded.runs.columns}
        given = ({key: AllDigits(row[key]) for key in axes if isinstance(row[key], float)} for row in rows)
        rows = [row | axis for row, axis in zip(rows, given, strict=True)]
        print_table(Table(rows, title).printed())
    say(f"results: {loaded.folder}")
    tables, left_out = draw_figures(results, loaded.folder, expansion.figures, root)
    for path, why in left_out:
        say(f"left out: {path} ({why})", err=True)
    return tables


def draw_figures(
    results: Sequence[Result], folder: Path, figures: Sequence[FigureChoice] | None, root: Path | None = None
) -> tuple[list[Table], list[tuple[Path, FredsimError]]]:
    """Draw an experiment's figures, if None the error against iterations, into its folder, and print their paths.

    `root` is where data files are kept. Return their tables, and the figures left out, each with its error. No
    exception of any type reaches the caller: the runs may have taken days.
    """
    from fredsim.show import plots

    command = shlex.join(["fredsim", "plot", str(folder)])
    tables: list[Table] = []
    left_out: list[tuple[Path, FredsimError]] = []
    for figure in [FigureChoice(name="error")] if figures is None else figures:
        path = folder / figure.file
        try:
            options = replace(figure.options(command=command), data_root=root)
            drawing = plots.plot(results, path, figure.kind, options)
            write_files(path, drawing.tables, drawing.caption, command, latex=figure.latex)
        except FredsimError as error:
            left_out.append((path, error))
        except Exception as error:
            left_out.append((path, FredsimError(f"{type(error).__name__}: {' '.join(str(error).split())}")))
        else:
            say(f"figure:  {path}")
            tables += drawing.tables
    return tables, left_out


def _row(result: Result, label: str, *, timed: bool) -> dict[str, Any]:
    """Return a run's row of the table; `timed`: the table has a column of simulated seconds."""
    s = result.outcome
    rate = s["iterations_per_second"]  # of which decimals say nothing, since it is another one each time
    return {
        "run": label,
        "status": result.ending,
        "iterations": s["iterations"],
        **({"seconds" if result.live else "sim. seconds": s.get("time")} if timed else {}),
        **_measures(result),
        **({"gap": s["gap"]} if "gap" in s else {}),
        **{name: s[name] for name in result.own_metrics},
        "iter./s": round(rate) if 10 <= rate < math.inf else rate,
        "digest": s["digest"][:12],
    }


def _measures(result: Result) -> dict[str, Any]:
    """Return the error, or the loss, by the name of its column; of a problem of the user's own, what it has of both."""
    s = result.outcome
    if "problem" in result.config:
        both = {"valid. loss": s["validation_loss"], "valid. error": s["validation_error"]}
        return {name: value for name, value in both.items() if value is not None}
    if result.measure == "validation_loss":
        return {"valid. loss": s["validation_loss"]}
    return {"valid. error": s["validation_error"], "test error": s["test_error"]}


def print_ending(expansion: Expansion, loaded: Result | Results, how: str = "--resume") -> int:
    """Print which runs failed, how many are left, and `how` to continue them.

    Return the exit code: 0, 2 after a failure, or INTERRUPTED.
    """
    results: Sequence[Result] = [loaded] if isinstance(loaded, Result) else list(loaded)
    failures = [] if isinstance(loaded, Result) else loaded.failures
    for error in dict.fromkeys(error for _, error in failures):
        names = [name for name, other in failures if other == error]
        more = f" (and so did {', '.join(names[1:MOST_NAMED])}" + (
            f" and {len(names) - MOST_NAMED} more)" if len(names) > MOST_NAMED else ")"
        )
        print_error(f"{names[0]} failed: {error}{more if names[1:] else ''}")
    left = len(expansion.runs) - len(results) - len(failures)
    if left:
        say(f"interrupted: {left} of {len(expansion.runs)} runs remain; continue with {how}", err=True)
        return INTERRUPTED
    if isinstance(loaded, Result) and loaded.summary["status"] == "interrupted":
        how = "continues" if Checkpoints(loaded.folder).folder.is_dir() else "starts it from the beginning"
        say(f"interrupted: {loaded.folder} holds the results so far; the same command {how}", err=True)
        return INTERRUPTED
    return 2 if failures else 0


def print_plot(
    context: typer.Context, folders: Sequence[Path], output: Path | None, kind: str, options: Options, *, latex: bool
) -> int:
    """Draw the figure of a `fredsim plot` command or, without options, an experiment's own; return the exit code."""
    from fredsim.show import plots

    results = distinct([result for folder in folders for result in results_of(folder)])
    note_lacking(folders)
    parameters = {key: value for key, value in given_options(context).items() if key != "allow_code"}
    parameters |= {"folders": folders}
    if parameters in ({"folders": folders[:1]}, {"folders": folders[:1], "data_root": options.data_root}):
        return _draw_again(results, folders[0], options.data_root)
    output = output or Path("error.pdf" if kind == "curves" else f"{kind}.pdf")
    # The command in the caption leaves these out, so that the same runs give the same figure in any file.
    command = command_line(context, {**parameters, "output": None, "data_root": None})
    drawing = plots.plot(results, output, kind, replace(options, command=command))
    # Before anything is printed, whose reader may leave: a new figure would lie beside tables of the last time.
    written = write_files(output, drawing.tables, drawing.caption, command_line(context, parameters), latex=latex)
    for table in drawing.tables:
        print_table(table.printed())
    for path in (output, *written):
        say(path)
    return 0


def _draw_again(results: Sequence[Result], folder: Path, root: Path | None) -> int:
    """Draw the figures of the experiment in a folder again, print their tables, and return the exit code."""
    figures = recorded_figures(folder)
    if figures is not None and not figures:
        raise ConfigError(f"{folder}: figures is [], so it has no figure of its own; ask for one by --kind or -o")
    tables, left_out = draw_figures(results, folder, figures, root)
    for table in tables:
        print_table(table.printed())
    for why in dict.fromkeys(str(error) for _, error in left_out):
        print_error(f"{why} (left out: {', '.join(str(path) for path, error in left_out if str(error) == why)})")
    return 2 if left_out else 0
