"""Curves of metrics.csv: error or loss against iterations, updates, bytes or seconds, with published points.

The runs of one line are drawn as their median, and a band from the smallest to the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fredsim.config.figures.quantities import of_which_less_is_better
from fredsim.runs.folder.results import Result
from fredsim.show.plots import published
from fredsim.show.plots.axes import plain_numbers, style_y, unclip
from fredsim.show.plots.combined import by_steps, column_of, combined, middles, note_steps
from fredsim.show.plots.drawing import (
    Drawing,
    Kind,
    Options,
    X,
    axis_unit,
    label_of,
    mark_diverged,
    marker_notes,
    quantity_text,
    worst_edge,
    x_of,
)
from fredsim.show.plots.finals import final_values, first_x, goal_of, note_diverged, tabulated
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.hidden_lines import coinciding, tell_apart
from fredsim.show.plots.numbers import cut_above, median, number
from fredsim.show.plots.titles.curve_titles import MANY, Shape, name_lines, titled
from fredsim.show.tables import PUBLISHED, Table, as_given

__all__ = ["KIND", "default_x", "final_row"]

HIGH_BAND, BAND_ROOM = 100, 10  # how many times the largest value of a line a band is that is cut, and at how many
ALL, QUARTILES = (0.0, 1.0), (0.25, 0.75)  # the quantiles at a band's edges


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel into each Axes."""
    runs = [run for panel in panels for run in panel.runs]
    x, y, real = options.x or default_x(runs), options.y, any(run.live for run in runs)
    end = options.end or max(x_of(run.metrics, x).max() for run in runs)
    unit, name = axis_unit(x, end)
    stop = end / unit if options.end else math.inf  # nothing is shown beyond it
    shapes = [{line.label: _shape(line, x, y, unit, options.quartiles) for line in panel.lines} for panel in panels]
    seen = [{label: shape.until(stop) for label, shape in found.items()} for found in shapes]
    same = _coinciding(panels, shapes)
    top, band_top = _top(seen, y), _band_top(seen, y)
    drawn: list[dict[str, Line2D]] = []
    sources: dict[str, bool] = {}  # of published points, each with whether one of them is shown
    marked: list[Result] = []
    for axes, panel, found in zip(grid, panels, shapes, strict=True):
        several = [line for line in panel.lines if line.label in same]
        edge = min(top, band_top) if len(several) <= MANY else None
        drawn.append({one.label: _draw(axes, one, found[one.label], top, edge) for one in several})
        for line in panel.lines:
            marked += _mark_ends(axes, line, (x, y), unit, (top, stop))
            for one in published.series(line.runs, x, y):
                at, values = zip(*one.points, strict=True)
                sources[one.source] = sources.get(one.source, False) or min(at) / unit <= stop
                axes.plot(np.array(at) / unit, values, "o", color=line.colour, fillstyle="none", markersize=4.5)
    for axes in grid:  # after drawing: a limit once set is no longer adjusted, and all panels share it
        axes.set_xlim(0, end / unit if options.end else None)
        label = "time" if real and x == "seconds" else X[x]
        axes.set_xlabel(f"{label} ({name})" if name else label)
        plain_numbers(axes, "x")
        if options.end is None:
            axes.set_xlim(right=(end or 1) / unit)
    goal = goal_of(runs, y)
    if goal is not None:
        for axes in grid:
            axes.axhline(goal, color="0.35", linestyle=":", linewidth=1.0, zorder=1)
    scale = style_y(grid, options, stop)
    tell_apart(grid, drawn)
    for axes in grid if options.end is None else ():
        unclip(axes)
    caption = _caption(panels, options, (x, y), real=real, banded=max(map(len, drawn)) <= MANY)
    caption += [_leaving(seen, top)] if math.isfinite(top) else []
    if band_top < top and max(map(len, drawn)) <= MANY:
        caption.append(
            f"Bands are cut at {number(band_top)}; the largest value is {number(_largest(seen, bands=True))}."
        )
    caption += [] if math.isfinite(_largest(shapes)) else ["No line has a value that can be drawn."]
    caption += [] if goal is None else [f"Dotted: the goal, {number(goal)}."]
    asked = options if options.reach or goal is None else replace(options, reach=(goal,))
    tables = [Table([final_row(panel, line, y, asked) for panel in panels for line in panel.lines])]
    if sources:
        rows = [row for panel in panels for line in panel.lines for row in _published_rows(panel, line, x, y)]
        tables.append(Table(rows, PUBLISHED))
    circles = [source for source, shown in sources.items() if shown]
    text = " ".join(filter(None, [*caption, *marker_notes(marked, circles, worst_edge(runs, y)), scale]))
    drawing = titled(Drawing(text, tables, bool(circles)), panels, shapes, same, x, y, name)
    return replace(drawing, named=name_lines(grid, panels, seen, drawing, options))


def _caption(
    panels: Sequence[Panel], options: Options, axes: tuple[str, str], *, real: bool, banded: bool
) -> list[str]:
    """Return the sentences about what is drawn."""
    x, y = axes
    most = max(len(line.runs) for panel in panels for line in panel.lines)
    fewest = min(len(line.runs) for panel in panels for line in panel.lines)
    what = label_of(y).partition(" (")[0]
    parts = [f"{what[0].upper()}{what[1:]} against {quantity_text(x, real=real)}."]
    if most > 1:
        many = f"{'up to ' if fewest < most else ''}{most}"
        of = "quartiles" if options.quartiles else "smallest and largest"
        where = "bands: their" if banded else "the table has their"
        parts.append(f"Lines: median of {many} runs; {where} {of}.")
        several = [line.runs for panel in panels for line in panel.lines if len(line.runs) > 1]
        parts += note_diverged(several, y)
        stepped = [run for runs in several if by_steps(runs, x) for run in runs]
        parts += [note_steps(stepped)] if stepped else []
    elif any(len(panel.lines) > 1 for panel in panels):
        parts.append("Lines: one run each.")
    return parts


def _coinciding(panels: Sequence[Panel], shapes: Sequence[Mapping[str, Shape]]) -> dict[str, list[str]]:
    """Return the labels of the lines to draw, each with those that have the same values in all panels."""
    crosses = [{line.label: tuple(run.has_diverged for run in line.runs) for line in panel.lines} for panel in panels]
    pairs = zip(shapes, crosses, strict=True)
    return coinciding([
        {label: (shape.key, ends[label]) if np.isfinite(shape.middle).any() else None for label, shape in found.items()}
        for found, ends in pairs
    ])  # fmt: skip


KIND = Kind(draw, shared=True, shows="published")


def default_x(runs: Sequence[Result]) -> str:
    """Return the x axis that curves have by default: seconds if all rows are on the clock, otherwise iterations."""
    return "seconds" if all(run.timed and run.by_the_clock for run in runs) else "iterations"


def _shape(line: Line, x: str, y: str, unit: float, quartiles: bool) -> Shape:
    at, values = combined(line.runs, x, column_of(y))
    middle = middles(line.runs, y, values)
    band = None
    if len(line.runs) > 1:
        values = values.where(middle.notna(), axis=0)
        low, high = (values.quantile(share, axis=1) for share in (QUARTILES if quartiles else ALL))
        band = (low.to_numpy(float), high.to_numpy(float))
    return Shape(np.asarray(at / unit, float), np.asarray(middle, float), band)


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
    known = np.pad(np.isfinite(middle), 1)
    alone = known[1:-1] & ~known[:-2] & ~known[2:]  # a line would not show them
    if alone.any():
        axes.plot(at[alone], middle[alone], ".", color=line.colour)
    if edge is not None and shape.band is not None:
        low, high = (np.minimum(side[:count], edge) for side in shape.band)
        axes.fill_between(at, low, high, color=line.colour, alpha=0.18, linewidth=0)
    if len(gone):
        axes.plot(at[-1], top, "^", color=line.colour, fillstyle="none", markersize=6)
    return found


def _mark_ends(
    axes: Axes, line: Line, columns: tuple[str, str], unit: float, limits: tuple[float, float]
) -> Iterator[Result]:
    """Draw a cross where a run diverged, at an edge if its line has left the panel by then; yield such runs.

    `limits`: the largest y of lines, and where the x axis ends. A run that diverged after that has no cross.
    """
    (x, y), (top, stop) = columns, limits
    for run in line.runs:
        last = run.metrics.iloc[-1:]
        if run.has_diverged and (at := float(x_of(last, x).iloc[0]) / unit) <= stop:
            value = float(last[y].iloc[0])
            mark_diverged(axes, (at, value if value <= top else math.inf), line.colour, worst_edge([run], y))
            yield run


def final_row(panel: Panel, line: Line, y: str, options: Options) -> dict[str, Any]:
    """Return a line's row: medians over its runs of how they ended, and when they reached the values of `reach`."""
    final = final_values(line.runs, y)
    row = panel.row({"line": line.label, "runs": len(line.runs)})
    row["diverged"] = sum(run.has_diverged for run in line.runs)
    row[f"final {y}"] = tabulated(line.runs, y)
    if len(final) > 1:
        ends = ("lower quartile", "upper quartile") if options.quartiles else ("smallest", "largest")
        row |= zip(ends, np.quantile(final, QUARTILES if options.quartiles else ALL).tolist(), strict=True)
    for value in options.reach:
        for what in ("iterations", "bytes", "seconds"):
            middle = median(first_x(run, what, y, value) for run in line.runs)
            if what != "seconds" or all(run.timed for run in line.runs):
                shown = middle if what == "seconds" else int(middle) if math.isfinite(middle) else None
                row[f"{what} to {as_given(value)}"] = None if math.isinf(middle) else shown
        row[f"reached {as_given(value)}"] = sum(len(run.first_row(y, value)) for run in line.runs)
    return row


def _published_rows(panel: Panel, line: Line, x: str, y: str) -> Iterator[dict[str, Any]]:
    """Yield one row per published point, with the median at that x of its runs that came so far, and the difference.

    There is no median if none did, or if half of them diverged.
    """
    for found in published.series(line.runs, x, y):
        for place, value in found.points:
            runs = [run for run in found.runs if run.has_diverged or x_of(run.metrics, x).iloc[-1] >= place]
            here = math.nan
            if not all(run.has_diverged for run in runs):
                at, values = combined(runs, x, column_of(y))
                here = float([math.nan, *middles(runs, y, values)[at <= place]][-1])
            yield published.row(panel, line.label, (x, place), value, here if math.isfinite(here) else None)
