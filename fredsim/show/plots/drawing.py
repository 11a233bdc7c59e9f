"""What the kinds of figures share: their options and results, columns and units, the y axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from fredsim.config.figure_options import Options, X, Y, label_of
from fredsim.errors import ConfigError
from fredsim.runs.results import Result
from fredsim.show.plots.groups import PANEL_KEYS, Panel
from fredsim.show.tables import Table
from fredsim.system.memory import byte_unit

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Drawing",
    "Kind",
    "Options",
    "X",
    "check_clocks",
    "counted",
    "in_units",
    "label_of",
    "logarithmic",
    "marks",
    "offered_y",
    "share_of",
    "style_y",
    "usual_y",
    "x_of",
]

DECADES = 2.2  # up to so many, 2 and 5 of each are labelled, too
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))  # units of time and their names
FOOT = 0.3  # height, in decades, of the linear part from 0 to the smallest positive value


@dataclass(frozen=True)
class Drawing:
    """A caption and tables of what was drawn, and whether published points were among it."""

    caption: str
    tables: list[Table] = field(default_factory=list)
    published: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    `draw` takes the axes, the panels and the options. With `axes` 0 there is one Axes per panel, all with the same
    scales where they are `shared`; else there are that many, and one panel has all runs, unless panels are `columns`
    of these axes. `panels` are keys, or the beginnings of keys, whose values make a panel where that is not asked for.
    `runs`: there is a panel for each run, one below the other; `beside`: the legend stands beside the panels, however
    short it is.
    """

    idea: str
    draw: Callable[[Sequence[Axes], Sequence[Panel], Options], Drawing]
    axes: int = 0
    shared: bool = False
    panels: tuple[str, ...] = PANEL_KEYS
    runs: bool = False
    columns: bool = False
    beside: bool = False


def marks(runs: Iterable[Result], sources: Collection[str]) -> list[str]:
    """Return what a caption says of its crosses (runs that diverged) and circles (published points)."""
    diverged = any(run.summary["status"] == "diverged" for run in runs)
    published = [f"Circles: published ({'; '.join(sources)})."] if sources else []
    return [*(["×: a run diverged."] if diverged else []), *published]


def offered_y(results: Sequence[Result]) -> list[str]:
    """Return the columns of `Y` that all runs have; the error is none of them where there is a gap instead."""
    present = [y for y in Y if all(y in run.metrics for run in results)]
    without = "gap" in present and all(run.metrics["validation_error"].isna().all() for run in results)
    return [y for y in present if y != "validation_error" or not without]


def usual_y(results: Sequence[Result]) -> str:
    """Return what is drawn of runs where nobody says: the error, or the gap where they have that instead."""
    return "gap" if "validation_error" not in offered_y(results) else "validation_error"


def x_of(metrics: pd.DataFrame, x: str) -> pd.Series[float]:
    """Return a column of metrics.csv, or the bytes pushed and fetched."""
    if x == "bytes":
        return metrics["bytes_pushed"] + metrics["bytes_fetched"]
    return metrics[{"iterations": "iteration", "updates": "timestamp", "seconds": "time"}[x]]


def in_units(x: str | None, largest: float) -> tuple[float, str]:
    """Return the unit of an axis with values up to `largest`: how many bytes or seconds it is, and its name.

    1 and no name for an axis that is neither.
    """
    if x == "bytes":
        unit, name = byte_unit(largest)
        return unit, "bytes" if name == "B" else name
    if x == "seconds":
        return next(((unit, name) for unit, name in SECONDS if largest >= unit), SECONDS[-1])
    return 1.0, ""


def counted(x: str, *, real: bool) -> str:
    """Return in words what an axis of `X` counts; `real`: seconds are, of one run at least."""
    return {"bytes": "pushed and fetched bytes", "seconds": "seconds" if real else "simulated seconds"}.get(x, x)


def check_clocks(results: Iterable[Result], what: str, remedy: str) -> None:
    """Raise ConfigError, `what` is asked for, where a run has no clock."""
    for run in results:
        if not run.timed:
            clock = "give its experiment `dispatcher: {name: clock}`"
            raise ConfigError(f"{what}, and {run.folder} has no clock; {clock}{remedy}")


def share_of(row: pd.Series[float], copies: str) -> float:
    """Return the share of the potential pushes or fetches that were made."""
    return float(row[copies] / max(1, row[f"potential_{copies}"]))


def style_y(grid: Sequence[Axes], options: Options) -> str:
    """Label the y axis of panels that share it and choose its scale, once all is drawn; an error begins at 0.

    Returns what the caption should say of the scale.
    """
    for axes in grid:
        axes.set_ylabel(label_of(options.y))
        if options.y == "validation_error" and not options.log:
            axes.set_ylim(bottom=0)
    return logarithmic(grid) if options.log else ""


def logarithmic(grid: Sequence[Axes]) -> str:
    """Give axes that share their scale a logarithmic y axis with plain numbers, once all is drawn.

    Where a value is 0, the axis is linear from 0 to the smallest positive value; without positive values all of it
    stays linear. Returns what the caption should say of that.
    """
    above = min(float(axes.dataLim.minposy) for axes in grid)
    if not math.isfinite(above):
        for axes in grid:
            axes.set_ylim(bottom=0)
        return "No value is above 0 that a logarithmic axis could show."
    zeros = any(axes.dataLim.y0 <= 0 for axes in grid)
    for axes in grid:
        if zeros:
            axes.set_yscale("symlog", linthresh=above, linscale=FOOT)
            axes.set_ylim(bottom=-above / 4)
        else:
            axes.set_yscale("log")
    low, high = grid[0].get_ylim()
    few = math.log10(high / max(low, above)) <= DECADES
    ticks, between = LogLocator(subs=(1, 2, 5) if few else (1,)), LogLocator(subs=range(2, 10))
    for axes in grid:
        if zeros:
            numbers = (ticks.tick_values(above, high), between.tick_values(above, high))
            labelled, unlabelled = ([value for value in found if value >= above] for found in numbers)
            axes.yaxis.set_major_locator(FixedLocator([0, *labelled]))
            axes.yaxis.set_minor_locator(FixedLocator(unlabelled))
        else:
            axes.yaxis.set_major_locator(ticks)
            axes.yaxis.set_minor_locator(between)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    return f"Below {above:.3g} the axis is linear, to 0." if zeros else ""
