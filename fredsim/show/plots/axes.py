"""The axes of figures: linear or logarithmic, with numbers in one style, and lines that the frame does not cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter

from fredsim.config.figures.options import LOG_FROM, Options, label_of
from fredsim.numerics.arrays import Floats
from fredsim.show.plots.numbers import TickNumbers

__all__ = ["figure_of", "log_ticks", "logarithmic", "plain_numbers", "scale_y", "style_y", "unclip"]

FEW_DECADES = 2.2  # a logarithmic axis of so many decades or fewer also has labels at 2 and 5
LINEAR_DECADES = 0.3  # the height, in decades, of the linear part from 0 to the smallest positive value
MOST_DECADES = 7  # a logarithmic axis of more decades has labels at some of them only
BESIDE, BESIDE_LONG = 4, 2  # those of panels side by side, and for numbers from LONG_NUMBER on
LONG_NUMBER = 50_000
TICKS = 6  # the most intervals between the labels of a linear axis


def figure_of(axes: Axes) -> Figure:
    """Return the figure that a panel is of."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def style_y(grid: Sequence[Axes], options: Options, stop: float = math.inf) -> str:
    """Label the y axis of panels that share it and set its scale, after drawing; an axis of the error begins at 0.

    `stop`: where the x axis ends, if lines go on; what is beyond that does not count. Returns the caption's sentence
    about the scale, or an empty text.
    """
    for axes in grid:
        axes.set_ylabel(label_of(options.y, nats=options.nats))
        if math.isfinite(stop):
            _fit_to(axes, stop)
    return scale_y(grid, options.log, from_zero=options.y == "validation_error", stop=stop)


def scale_y(grid: Sequence[Axes], log: bool | None, *, from_zero: bool, stop: float = math.inf) -> str:
    """Make the shared y axis logarithmic, linear, or by default (None) what suits the values, after drawing.

    A linear axis begins at 0 if it is `from_zero`; `stop` as in `style_y`. Returns the caption's sentence about the
    scale, or an empty text.
    """
    text = logarithmic(grid, stop) if log or (log is None and _is_wide(grid, stop)) else ""
    for axes in grid:
        if axes.get_yscale() == "linear":
            if from_zero:
                axes.set_ylim(bottom=0)
            plain_numbers(axes, "y")
    return text


def _is_wide(grid: Sequence[Axes], stop: float) -> bool:
    """Return whether the values above 0 span more than a factor of LOG_FROM, and none is below 0."""
    drawn = _drawn(grid, stop)[:, 1]
    least = np.min(drawn, where=drawn > 0, initial=math.inf)
    return bool(not (drawn < 0).any() and drawn.max(initial=0) > LOG_FROM * least)


def _lines(axes: Axes) -> list[Line2D]:
    """Return the lines whose y are values, and no shares of the panel."""
    return [line for line in axes.lines if line.get_transform().contains_branch_seperately(axes.transData)[1]]


def _paths(axes: Axes) -> list[Path]:
    """Return the outlines of bands, and whiskers."""
    return [path for found in axes.collections for path in found.get_paths()]


def _drawn(grid: Sequence[Axes], stop: float) -> Floats:
    """Return all x and y that are drawn up to an x, where y is finite, float64 (n, 2).

    The limits of data that matplotlib keeps have rounding errors: a whisker that ends at 0 may be one of 1e-17.
    """
    points = [np.empty((0, 2))]
    for axes in grid:
        points += [np.asarray(line.get_xydata(), float) for line in _lines(axes)]
        points += [np.asarray(path.vertices, float) for path in _paths(axes)]
    found = np.concatenate(points)
    return found[np.isfinite(found[:, 1]) & (found[:, 0] <= stop)]


def _fit_to(axes: Axes, stop: float) -> None:
    """Let the limits of an axis be those of what is drawn up to an x."""
    if len(shown := _drawn([axes], stop)):
        axes.dataLim.update_from_data_xy(shown, ignore=True)
        axes.autoscale_view(scalex=False)


def logarithmic(grid: Sequence[Axes], stop: float = math.inf) -> str:
    """Give axes that share their scale a logarithmic y axis, after drawing; `stop` as in `style_y`.

    If a value is 0, the axis is linear from 0 to the smallest positive value. Values below 0 are moved to 0, the foot
    of the axis, which says so; without positive values it stays linear. Returns the caption's sentence about that, or
    an empty text.
    """
    drawn = _drawn(grid, stop)[:, 1]
    above, zeros = float(np.min(drawn, where=drawn > 0, initial=math.inf)), bool((drawn <= 0).any())
    below = bool((drawn < 0).any())
    if not math.isfinite(above):
        for axes in () if below else grid:
            axes.set_ylim(bottom=0)
        return "No value is above 0 that a logarithmic axis could show."
    for axes in grid if below else ():
        _raise_to_zero(axes)
    for axes in grid:
        if zeros:
            axes.set_yscale("symlog", linthresh=above, linscale=LINEAR_DECADES)
            axes.set_ylim(bottom=-above / 4)
        else:
            axes.set_yscale("log")
    low, high = grid[0].get_ylim()
    ticks = log_ticks(max(low, above), high)
    between = LogLocator(subs=range(2, 10), numticks=12)
    for axes in grid:
        if zeros:
            numbers = (ticks.tick_values(above, high), between.tick_values(above, high))
            labelled, unlabelled = ([value for value in found if value >= above] for found in numbers)
            axes.yaxis.set_major_locator(FixedLocator([0, *labelled]))
            axes.yaxis.set_minor_locator(FixedLocator(unlabelled))
        else:
            axes.yaxis.set_major_locator(ticks)
            axes.yaxis.set_minor_locator(between)
        axes.yaxis.set_major_formatter(TickNumbers(zero="≤ 0" if below else "0"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    text = f"Below {above:.3g} the axis is linear, to 0" if zeros else ""
    return f"{text}, where values below 0 stand, too." if below else text and f"{text}."


def log_ticks(low: float, high: float) -> LogLocator:
    """Return which ticks of a logarithmic axis between positive values have labels."""
    decades = math.log10(high) - math.log10(low)
    return LogLocator(subs=(1, 2, 5) if decades <= FEW_DECADES else (1,), numticks=12 if decades <= MOST_DECADES else 6)


def _raise_to_zero(axes: Axes) -> None:
    """Move all that is drawn below 0 to 0."""
    for line in _lines(axes):
        line.set_ydata(np.maximum(np.asarray(line.get_ydata(), float), 0))
    for path in _paths(axes):
        path.vertices = np.maximum(np.asarray(path.vertices, float), (-math.inf, 0))
    box = axes.dataLim
    if math.isfinite(box.y0):
        box.y0, box.y1 = max(box.y0, 0.0), max(box.y1, 0.0)


def plain_numbers(axes: Axes, which: str, *, whole: bool = False) -> None:
    """Give a linear axis, `x` or `y`, numbers in the style of figures, at a few of its values; `whole`: integers.

    Panels that stand side by side have fewer numbers on their x axes, the fewer the longer these are.
    """
    axis = axes.xaxis if which == "x" else axes.yaxis
    spec, ticks = axes.get_subplotspec(), TICKS
    if which == "x" and spec is not None and spec.get_gridspec().ncols > 1:
        ticks = BESIDE_LONG if max(map(abs, axes.get_xlim())) >= LONG_NUMBER else BESIDE
    axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10], integer=whole, min_n_ticks=1))
    axis.set_major_formatter(TickNumbers())


def unclip(axes: Axes) -> None:
    """Draw the lines and bands that end at the frame in their full width, instead of the half within it."""
    for artist in (*axes.lines, *axes.collections):
        artist.set_clip_on(False)
