"""Curves of metrics.csv: error or loss against iterations, updates, bytes or seconds, with published points.

The runs of one line are drawn as their median, and a band from the smallest to the largest value, at the same
iteration. Against seconds, or if rows are recorded on the clock, they are taken at the same x, at which each run has
the value of its last row so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fredsim.runs.folder.results import Result
from fredsim.show.plots import published
from fredsim.show.plots.axes import plain_numbers, style_y, unclip
from fredsim.show.plots.drawing import (
    Drawing,
    Kind,
    Options,
    X,
    axis_unit,
    final_values,
    label_of,
    mark_diverged,
    marker_notes,
    quantity_text,
    x_of,
)
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.hidden_lines import coinciding, tell_apart
from fredsim.show.plots.numbers import cut_above, drawable, median, number
from fredsim.show.plots.titles.curve_titles import MANY, Shape, name_lines, titled
from fredsim.show.plots.titles.questions import of_which_less_is_better
from fredsim.show.tables import PUBLISHED, Table

__all__ = ["KIND", "STEPS", "by_iteration", "by_steps", "default_x", "final_row", "first_x", "steps"]

HIGH_BAND, BAND_ROOM = 100, 10  # how many times the largest value of a line a band is that is cut, and at how many
ALL, QUARTILES = (0.0, 1.0), (0.25, 0.75)  # the quantiles at a band's edges
STEPS = "A run's value is that of its last row so far; a line of several ends where the first of them does."


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel into each Axes."""
    runs = [run for panel in panels for run in panel.runs]
    x, y, real = options.x or default_x(runs), options.y, any(run.live for run in runs)
    end = options.end or max(x_of(run.metrics, x).max() for run in runs)
    unit, name = axis_unit(x, end)
    shapes = [{line.label: _shape(line, x, y, unit, options.quartiles) for line in panel.lines} for panel in panels]
    same = _coinciding(panels, shapes)
    top, band_top = _top(shapes, y), _band_top(shapes, y)
    drawn: list[dict[str, Line2D]] = []
    sources: dict[str, None] = {}
    for axes, panel, found in zip(grid, panels, shapes, strict=True):
        several = [line for line in panel.lines if line.label in same]
        edge = min(top, band_top) if len(several) <= MANY else None
        drawn.append({one.label: _draw(axes, one, found[one.label], top, edge) for one in several})
        for line in panel.lines:
            _mark_ends(axes, line, (x, y), unit, top)
            for one in published.series(line.runs, x, y):
                sources[one.source] = None
                at, values = zip(*one.points, strict=True)
                axes.plot(np.array(at) / unit, values, "o", color=line.colour, fillstyle="none", markersize=4.5)
    for axes in grid:  # after drawing: a limit once set is no longer adjusted, and all panels share it
        axes.set_xlim(0, end / unit if options.end else None)
        label = "time" if real and x == "seconds" else X[x]
        axes.set_xlabel(f"{label} ({name})" if name else label)
        plain_numbers(axes, "x")
        if options.end is None:
            axes.set_xlim(right=(end or 1) / unit)
    scale = style_y(grid, options)
    tell_apart(grid, drawn)
    for axes in grid if options.end is None else ():
        unclip(axes)
    caption = _caption(panels, options, (x, y), real=real, banded=max(map(len, drawn)) <= MANY)
    caption += [_leaving(shapes, top)] if math.isfinite(top) else []
    if band_top < top and max(map(len, drawn)) <= MANY:
        caption.append(
            f"Bands are cut at {number(band_top)}; the largest value is {number(_largest(shapes, bands=True))}."
        )
    tables = [Table([final_row(panel, line, y, options) for panel in panels for line in panel.lines])]
    if sources:
        rows = [row for panel in panels for line in panel.lines for row in _published_rows(panel, line, x, y)]
        tables.append(Table(rows, PUBLISHED))
    text = " ".join([*caption, *marker_notes(runs, sources), *([scale] if scale else [])])
    drawing = titled(Drawing(text, tables, bool(sources)), panels, shapes, same, x, y, name)
    return replace(drawing, named=name_lines(grid, panels, shapes, drawing, options))


def _caption(
    panels: Sequence[Panel], options: Options, axes: tuple[str, str], *, real: bool, banded: bool
) -> list[str]:
    """Return the sentences about what is drawn."""
    x, y = axes
    runs = [run for panel in panels for run in panel.runs]
    most = max(len(line.runs) for panel in panels for line in panel.lines)
    fewest = min(len(line.runs) for panel in panels for line in panel.lines)
    what = label_of(y).partition(" (")[0]
    parts = [f"{what[0].upper()}{what[1:]} against {quantity_text(x, real=real)}."]
    if most > 1:
        several = f"{'up to ' if fewest < most else ''}{most}"
        of = "quartiles" if options.quartiles else "smallest and largest"
        parts.append(f"Lines: median of {several} runs{f'; bands: their {of}' if banded else ''}.")
        parts += [STEPS] if by_steps(runs, x) else []
    return parts


def _coinciding(panels: Sequence[Panel], shapes: Sequence[Mapping[str, Shape]]) -> dict[str, list[str]]:
    """Return the labels of the lines to draw, each with those that have the same values in all panels."""
    crosses = [{line.label: tuple(run.has_diverged for run in line.runs) for line in panel.lines} for panel in panels]
    pairs = zip(shapes, crosses, strict=True)
    return coinciding([{label: (found[label].key, ends[label]) for label in found} for found, ends in pairs])


KIND = Kind(draw, shared=True)


def default_x(runs: Sequence[Result]) -> str:
    """Return the x axis that curves have by default: seconds if all rows are on the clock, otherwise iterations."""
    return "seconds" if all(run.timed and run.by_the_clock for run in runs) else "iterations"


def _shape(line: Line, x: str, y: str, unit: float, quartiles: bool) -> Shape:
    at, values = _rows(line, x, y)
    band = None
    if len(line.runs) > 1:
        low, high = (values.quantile(share, axis=1) for share in (QUARTILES if quartiles else ALL))
        band = (low.to_numpy(float), high.to_numpy(float))
    return Shape(np.asarray(at / unit, float), np.asarray(values.median(axis=1), float), band)


def _top(shapes: Sequence[Mapping[str, Shape]], y: str) -> float:
    """Return the value at which lines leave at the top that grow by many decades, which would flatten the others.

    It is infinity if all lines are shown whole: where they span fewer decades, or less is not better.
    """
    finite = [shape.middle[np.isfinite(shape.middle)] for found in shapes for shape in found.values()]
    finite = [values for values in finite if len(values)]
    if not finite or of_which_less_is_better(y) is None:
        return math.inf
    return cut_above(np.concatenate(finite).tolist(), max(float(values[0]) for values in finite))


def _band_top(shapes: Sequence[Mapping[str, Shape]], y: str) -> float:
    """Return the value at which bands are cut that go far above all lines, which would flatten these; else infinity."""
    most = _largest(shapes)
    if of_which_less_is_better(y) is None or not 0 < HIGH_BAND * most < _largest(shapes, bands=True):
        return math.inf
    return BAND_ROOM * most


def _largest(shapes: Sequence[Mapping[str, Shape]], *, bands: bool = False) -> float:
    """Return the largest value of all lines, or of their bands, that is finite; −∞ if there is none."""
    every = [shape for found in shapes for shape in found.values()]
    edges = [shape.band[1] for shape in every if shape.band is not None] if bands else [shape.middle for shape in every]
    return max((float(value) for values in edges for value in values if math.isfinite(value)), default=-math.inf)


def _leaving(shapes: Sequence[Mapping[str, Shape]], top: float) -> str:
    return f"△: a line leaves at the top, {number(top)}; the largest value is {number(_largest(shapes))}."


def _draw(axes: Axes, line: Line, shape: Shape, top: float, edge: float | None) -> Line2D:
    """Draw a line up to where it is above `top`, and its band up to `edge`, without `edge` no band."""
    gone = np.flatnonzero(shape.middle > top)
    count = int(gone[0]) + 1 if len(gone) else len(shape.middle)
    at, middle = shape.at[:count], np.minimum(shape.middle[:count], top)
    (found,) = axes.plot(at, middle, color=line.colour, linestyle=line.dash, label=line.label)
    if edge is not None and shape.band is not None:
        low, high = (np.minimum(side[:count], edge) for side in shape.band)
        axes.fill_between(at, low, high, color=line.colour, alpha=0.18, linewidth=0)
    if len(gone):
        axes.plot(at[-1], top, "^", color=line.colour, fillstyle="none", markersize=6)
    return found


def _mark_ends(axes: Axes, line: Line, columns: tuple[str, str], unit: float, top: float) -> None:
    """Draw a cross where a run diverged, at the upper edge if its line has left the panel by then."""
    x, y = columns
    for run in line.runs:
        if run.has_diverged:
            last = run.metrics.iloc[-1:]
            value = float(last[y].iloc[0])
            mark_diverged(axes, float(x_of(last, x).iloc[0]) / unit, value if value <= top else math.inf, line.colour)


def _rows(line: Line, x: str, y: str) -> tuple[pd.Series[float], pd.DataFrame]:
    """Return a line's x and its runs' values, one column per run: by iteration, with the median of x; or by steps.

    Values that are not finite, or too large, are NaN: they cannot be drawn, and medians leave them out.
    """
    if by_steps(line.runs, x):
        at, values = steps(line, x, y)
    else:
        at = by_iteration(line, lambda metrics: x_of(metrics.dropna(subset=[y]), x)).median(axis=1)
        values = by_iteration(line, lambda metrics: metrics[y].dropna())
    return at, values.where(drawable(values))


def by_iteration(line: Line, pick: Callable[[pd.DataFrame], pd.Series[float]]) -> pd.DataFrame:
    """Return the column that `pick` takes from each of a line's runs, one column per run, indexed by iteration.

    Left out is the end of a run that diverged between rows: there it alone has a value, which is no median of the runs.
    """
    picked = [pick(run.metrics.set_index("iteration", drop=False)) for run in line.runs]
    # a run that ends by the clock may have a last row without a further iteration
    found = pd.concat([values[~values.index.duplicated()] for values in picked], axis=1).sort_index()
    return found.drop(index=list(_lone_ends(line.runs)), errors="ignore")


def _lone_ends(runs: Sequence[Result]) -> Iterator[int]:
    """Yield the iterations at which a run diverged, and no other has a row, though one goes on."""
    rows = [run.metrics["iteration"] for run in runs]
    for run, own in zip(runs, rows, strict=True):
        end, others = own.iloc[-1], [other for other in rows if other is not own]
        if run.has_diverged and not any((other == end).any() for other in others):
            yield from [end] if any(other.iloc[-1] > end for other in others) else []


def by_steps(runs: Sequence[Result], x: str) -> bool:
    """Return whether runs are compared at the same x, since the rows of one iteration may be far apart."""
    return x == "seconds" or any(run.by_the_clock for run in runs)


def steps(line: Line, x: str, y: str) -> tuple[pd.Series[float], pd.DataFrame]:
    """Return every x at which a run of a line has a row, and each run's last value of y so far, one column per run.

    They end where the first run ends that did not diverge; a run that diverged has no values after its end.
    """
    columns = []
    for run in line.runs:
        rows = run.metrics.dropna(subset=[y])
        values = rows[y].set_axis(x_of(rows, x).to_numpy(float))
        columns.append(values[~values.index.duplicated(keep="last")])
    grid = pd.Index(sorted(set().union(*(values.index for values in columns))), dtype=float)
    ended = [
        values.index[-1] for run, values in zip(line.runs, columns, strict=True) if len(values) and not run.has_diverged
    ]
    grid = grid[grid <= min(ended, default=math.inf)]
    if not len(grid):  # no run has a value
        return pd.Series(dtype=float), pd.DataFrame(index=grid, columns=range(len(columns)), dtype=float)
    found = [values.reindex(grid, method="ffill")[grid <= values.index[-1]] for values in columns if len(values)]
    return pd.Series(grid, index=grid), pd.concat(found, axis=1).reindex(grid)


def final_row(panel: Panel, line: Line, y: str, options: Options) -> dict[str, Any]:
    """Return a line's row: medians over its runs of how they ended, and when they reached the values of `reach`."""
    final = final_values(line.runs, y)
    row = panel.row({"line": line.label, "runs": len(line.runs)})
    row["diverged"] = sum(run.has_diverged for run in line.runs)
    row[f"final {y}"] = median(final) if final else None
    if len(final) > 1:
        ends = ("lower quartile", "upper quartile") if options.quartiles else ("smallest", "largest")
        row |= zip(ends, np.quantile(final, QUARTILES if options.quartiles else ALL).tolist(), strict=True)
    for value in options.reach:
        rows = [run.first_row(y, value) for run in line.runs]
        for what in ("iterations", "bytes", "seconds"):
            middle = median(first_x(found, what) for found in rows)
            if what != "seconds" or all(run.timed for run in line.runs):
                shown = middle if what == "seconds" else int(middle) if math.isfinite(middle) else None
                row[f"{what} to {value:g}"] = None if math.isinf(middle) else shown
        row[f"reached {value:g}"] = sum(len(found) for found in rows)
    return row


def first_x(rows: pd.DataFrame, x: str) -> float:
    """Return x of the first of these rows, infinity if there are none."""
    return float(x_of(rows, x).iloc[0]) if len(rows) else math.inf


def _published_rows(panel: Panel, line: Line, x: str, y: str) -> Iterator[dict[str, Any]]:
    """Yield one row per published point, with the median of its runs at that x and the difference.

    If the runs ended before it, there is no median.
    """
    for found in published.series(line.runs, x, y):
        at, values = _rows(replace(line, runs=found.runs), x, y)
        middle = values.median(axis=1)
        for place, value in found.points:
            before = middle[at <= place]
            here = float(before.iloc[-1]) if len(before) and (at >= place).any() else None
            yield published.row(panel, line.label, (x, place), value, here)
