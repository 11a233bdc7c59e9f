"""Curves of metrics.csv: error or loss against iterations, updates or bytes, with published points.

The runs of one line are drawn as their median, and a band from the smallest to the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes

from fredsim.runs.results import Result
from fredsim.show.plots import published
from fredsim.show.plots.drawing import Drawing, Kind, Options, X, in_units, label_of, marks, style_y, x_of
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.tables import PUBLISHED, Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CURVES", "by_iteration", "final_row"]


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel in each pair of axes."""
    x, y = options.x or "iterations", options.y
    runs = [run for panel in panels for line in panel.lines for run in line.runs]
    unit, name = in_units(max(x_of(run.metrics, x).max() for run in runs)) if x == "bytes" else (1.0, "")
    sources: dict[str, None] = {}
    for axes, panel in zip(grid, panels, strict=True):
        for line in panel.lines:
            _draw(axes, line, x, y, unit)
            for found in published.series(line.runs, x, y):
                sources[found.source] = None
                axes.plot(*zip(*found.points, strict=True), "o", color=line.colour, fillstyle="none", markersize=4.5)
    for axes in grid:  # after drawing: a limit once set is no longer adjusted, and all panels share it
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{X[x]} ({name})" if name else X[x])
    scale = style_y(grid, options)
    counts = {len(line.runs) for panel in panels for line in panel.lines}
    what = label_of(y).partition(" (")[0]
    parts = [f"{what[0].upper()}{what[1:]} against {X[x].partition(' (')[0]}{'s' if not name else ' bytes'}."]
    if max(counts) > 1:
        several = f"{'up to ' if len(counts) > 1 else ''}{max(counts)}"
        parts.append(f"Lines: median of {several} runs; bands: their smallest and largest.")
    parts += [*marks(runs, sources), *([scale] if scale else [])]
    tables = [Table([final_row(panel, line, y, options.reach) for panel in panels for line in panel.lines])]
    if sources:
        rows = [row for panel in panels for line in panel.lines for row in _published_rows(panel, line, x, y)]
        tables.append(Table(rows, PUBLISHED))
    return Drawing(" ".join(parts), tables, bool(sources))


CURVES = Kind("error or loss against iterations, updates or bytes", draw, shared=True)


def _draw(axes: Axes, line: Line, x: str, y: str, unit: float) -> None:
    at, values = _rows(line, x, y)
    at = at / unit
    axes.plot(at, values.median(axis=1), color=line.colour, linestyle=line.dash, label=line.label)
    if len(line.runs) > 1:
        band = values.min(axis=1), values.max(axis=1)
        axes.fill_between(at, *band, color=line.colour, alpha=0.18, linewidth=0)
    for run in line.runs:
        if run.summary["status"] == "diverged":
            last = run.metrics.iloc[-1:]
            axes.plot(x_of(last, x) / unit, last[y], "x", color=line.colour, markersize=7, clip_on=False)


def _rows(line: Line, x: str, y: str) -> tuple[pd.Series[float], pd.DataFrame]:
    """Return a line's x (the median of its runs) and its runs' values, one column per run, by iteration."""
    at = by_iteration(line, lambda metrics: x_of(metrics.dropna(subset=[y]), x))
    return at.median(axis=1), by_iteration(line, lambda metrics: metrics[y].dropna())


def by_iteration(line: Line, pick: Callable[[pd.DataFrame], pd.Series[float]]) -> pd.DataFrame:
    """Return what `pick` takes from the metrics of a line's runs, one column per run, by iteration."""
    import pandas as pd

    picked = [pick(run.metrics.set_index("iteration", drop=False)) for run in line.runs]
    return pd.concat(picked, axis=1).sort_index()


def final_row(panel: Panel, line: Line, y: str, reach: Sequence[float]) -> dict[str, Any]:
    """Return a line's row: how its runs ended, and when they reached the values of `reach`; medians of several runs."""
    final = [float(run.metrics[y].iloc[-1]) for run in line.runs]
    row = panel.row({"line": line.label, "runs": len(final)})
    row["diverged"] = sum(run.summary["status"] == "diverged" for run in line.runs)
    row[f"final {y}"] = median(final)
    if len(final) > 1:
        row |= {"smallest": min(final), "largest": max(final)}
    for value in reach:
        when = [_reached(run, y, value) for run in line.runs]
        for what, found in zip(("iterations", "bytes"), zip(*when, strict=True), strict=True):
            middle = median(found)
            row[f"{what} to {value:g}"] = None if math.isinf(middle) else int(middle)
        row[f"reached {value:g}"] = sum(not math.isinf(iteration) for iteration, _ in when)
    return row


def _reached(run: Result, y: str, value: float) -> tuple[float, float]:
    """Return the iteration and the bytes of the first row whose y is at most `value`, infinities where none is."""
    rows = run.metrics[run.metrics[y] <= value]
    return (float(rows["iteration"].iloc[0]), float(x_of(rows, "bytes").iloc[0])) if len(rows) else (math.inf, math.inf)


def _published_rows(panel: Panel, line: Line, x: str, y: str) -> Iterator[dict[str, Any]]:
    """Yield one row per published point, with the median there of its runs and the difference.

    Where the runs ended before it, there is no median.
    """
    for found in published.series(line.runs, x, y):
        at, values = _rows(replace(line, runs=found.runs), x, y)
        middle = values.median(axis=1)
        for place, value in found.points:
            before = middle[at <= place]
            here = float(before.iloc[-1]) if len(before) and (at >= place).any() else None
            yield published.row(panel, line.label, (x, place), value, here)
