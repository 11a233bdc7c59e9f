"""What the kinds of figures share: what they are asked, what they hand back, columns and their units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from fredsim.figures import Options, X, Y
from fredsim.plots.groups import Panel
from fredsim.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Drawing", "Kind", "Options", "X", "Y", "dress_y", "in_units", "share_of", "x_of"]


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
    scales where they are `shared`; else there are that many, and the runs stand in one panel.
    """

    idea: str
    draw: Callable[[Sequence[Axes], Sequence[Panel], Options], Drawing]
    axes: int = 0
    shared: bool = False


def x_of(metrics: pd.DataFrame, x: str) -> pd.Series[float]:
    """Return a column of metrics.csv, or the bytes pushed and fetched."""
    if x == "bytes":
        return metrics["bytes_pushed"] + metrics["bytes_fetched"]
    return metrics["iteration" if x == "iterations" else "timestamp"]


def in_units(largest: float) -> tuple[float, str]:
    """Return a number of bytes to divide by, and its name."""
    power = min(4, max(0, int(math.log10(max(largest, 1)) / 3)))
    return 1000.0**power, ("bytes", "kB", "MB", "GB", "TB")[power]


def share_of(row: pd.Series[float], copies: str) -> float:
    """Return how many of the pushes or fetches that could have been made were."""
    return float(row[copies] / max(1, row[f"potential_{copies}"]))


def dress_y(axes: Axes, options: Options) -> None:
    """Name the y axis and choose its scale; an error begins at 0."""
    axes.set_ylabel(Y[options.y])
    if options.log:
        axes.set_yscale("log")
    elif options.y == "validation_error":
        axes.set_ylim(bottom=0)
