"""What the kinds of figures share: what they are asked, what they hand back, columns and their units."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from fredsim.config.figures import Options, X, label_of
from fredsim.runs.results import Result
from fredsim.show.plots.groups import CELL, Panel
from fredsim.show.tables import Table
from fredsim.system.memory import byte_unit

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Drawing",
    "Kind",
    "Options",
    "X",
    "dress_y",
    "in_units",
    "label_of",
    "logarithmic",
    "marks",
    "share_of",
    "x_of",
]

DECADES = 2.2  # as far as 2 and 5 of each decade have room for their numbers
FOOT = 0.3  # how many decades high the stretch from 0 to the smallest value above it is


@dataclass(frozen=True)
class Drawing:
    """What was drawn, in a sentence or two, and in tables; and whether published points were among it."""

    caption: str
    tables: list[Table] = field(default_factory=list)
    published: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    `draw` takes the axes, the panels and the options. With `axes` 0 there is a pair of axes a panel, all with the same
    scales where they are `shared`; else there are that many, and the runs stand in one panel. `panels` are the keys, or
    the beginnings of keys, whose values make a panel where that is not asked for.
    """

    idea: str
    draw: Callable[[Sequence[Axes], Sequence[Panel], Options], Drawing]
    axes: int = 0
    shared: bool = False
    panels: tuple[str, ...] = CELL


def marks(runs: Iterable[Result], sources: Collection[str]) -> list[str]:
    """Return what a caption says of the crosses and circles that some runs and published points have."""
    diverged = any(run.summary["status"] == "diverged" for run in runs)
    published = [f"Circles: published ({'; '.join(sources)})."] if sources else []
    return [*(["×: a run diverged."] if diverged else []), *published]


def x_of(metrics: pd.DataFrame, x: str) -> pd.Series[float]:
    """Return a column of metrics.csv, or the bytes pushed and fetched."""
    if x == "bytes":
        return metrics["bytes_pushed"] + metrics["bytes_fetched"]
    return metrics["iteration" if x == "iterations" else "timestamp"]


def in_units(largest: float) -> tuple[float, str]:
    """Return a number of bytes to divide by, and its name."""
    unit, name = byte_unit(largest)
    return unit, "bytes" if name == "B" else name


def share_of(row: pd.Series[float], copies: str) -> float:
    """Return how many of the pushes or fetches that could have been made were."""
    return float(row[copies] / max(1, row[f"potential_{copies}"]))


def dress_y(grid: Sequence[Axes], options: Options) -> str:
    """Name the y axis of panels that share it and choose its scale, once all is drawn; an error begins at 0.

    Returns what the caption should say of the scale.
    """
    for axes in grid:
        axes.set_ylabel(label_of(options.y))
        if options.y == "validation_error" and not options.log:
            axes.set_ylim(bottom=0)
    return logarithmic(grid) if options.log else ""


def logarithmic(grid: Sequence[Axes]) -> str:
    """Give axes that share their scale a logarithmic y axis, once all is drawn, with plain numbers beside its ticks.

    A value of 0 stands at its foot, where the axis is linear from 0 to the smallest value above. Without any value
    above 0 it stays linear. Returns what the caption should say of that.
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
