"""The figures of a report, as data for plotly.js.

The `legendgroup` of a trace is the label of its line (fredsim.show.plots.groups): the page's legend hides and shows all
traces of a line together, and gives them its colour. `meta` says what a trace `is`: a `line`, an edge of a `band`, a
`mark`, or `all` for what belongs to no line; and its `label`. `x` and `y` are lists, or mappings from the choices of an
axis to lists; figures.js takes the list of the current choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fredsim.config.figures.options import X, label_of
from fredsim.errors import visible
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import requested_files
from fredsim.show.plots import published
from fredsim.show.plots.combined import by_iteration, by_steps, column_of, median_x, middles, steps
from fredsim.show.plots.drawing import available_y, in_nats, x_of
from fredsim.show.plots.finals import goal_of
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.kinds.probe import B_STALENESS, PARTS, probes_of, quartiles
from fredsim.show.plots.kinds.staleness import SHOWN, counts_of, percentile
from fredsim.show.plots.numbers import drawable, given
from fredsim.show.plots.thinning import outlined
from fredsim.show.report.compression import thinned

__all__ = [
    "DASHES",
    "PLACE",
    "Figure",
    "axes_of",
    "copies",
    "curves",
    "panels_with_drops",
    "panels_with_probes",
    "probe",
    "run_curve",
    "staleness",
]

DASHES = ("solid", "dash", "dashdot", "dot")
#: Where the cross of a run stands whose last value is not finite.
PLACE = "at the run's worst finite one"
BINS = 60  # of a histogram of staleness
MEDIAN_PARTS = 100  # of a long median: each has its smallest and its largest value
RUN_PARTS = 25  # of the curve of a single run, which is the same
TITLES = {"bytes": "bytes pushed and fetched", "seconds": "simulated time (s)"}

Figure = dict[str, Any]


def axes_of(runs: Iterable[Result]) -> list[str]:
    """Return the choices for the x axis of these runs' curves; seconds only if all runs have a clock."""
    timed = all(run.timed for run in runs)
    return [x for x in X if timed or x != "seconds"]


def curves(panels: Sequence[Panel]) -> list[Figure]:
    """Return one figure per panel: every y against every x, with medians, bands and published points of each line."""
    runs = [run for panel in panels for run in panel.runs]
    axes, ys, nats = axes_of(runs), available_y(runs), in_nats(runs)
    goals = [_goal_line(runs, axes, y, goal) for y in ys if (goal := goal_of(runs, y)) is not None]
    figures = [
        _figure(panel.title, [*goals, *(trace for line in panel.lines for trace in _curve(line, axes, ys))])
        for panel in panels
    ]
    for figure in figures:  # the same scales in all panels
        figure |= {
            "x": {x: {"title": TITLES.get(x, X[x]), "range": _span(figures, "x", x)} for x in axes},
            "y": {y: {"title": label_of(y, nats=nats), "range": _span(figures, "y", y)} for y in ys},
        }
    return figures


def staleness(panels: Sequence[Panel]) -> list[Figure]:
    """Return one figure per panel: histograms of the staleness of what the server applied."""
    figures = []
    for panel in panels:
        traces = []
        counted = [(line, counts_of(line)) for line in panel.lines]
        end = max((percentile(counts, SHOWN) for _, counts in counted), default=0) + 1
        width = -(-end // BINS)
        edges = np.arange(0, end + width, width)
        for line, counts in counted:
            within = counts[counts.index < edges[-1]]  # np.histogram would add the end itself to the last bar
            shares = np.histogram(within.index, edges, weights=within)[0] / max(1, counts.sum()) / width
            trace = _trace(line) | {"x": edges - 0.5, "y": [*shares, 0.0]}
            trace["line"] |= {"shape": "hv"}
            traces.append(trace)
        figures.append(_figure(panel.title, traces, "staleness τ (updates)", "share of pushes, per update"))
    return figures


def panels_with_drops(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels with a run in which a gate dropped a copy."""

    def has_dropped(run: Result) -> bool:
        return any((run.metrics[kind] < run.metrics[f"potential_{kind}"]).any() for kind in ("pushes", "fetches"))

    return [panel for panel in panels if any(map(has_dropped, panel.runs))]


def copies(panels: Sequence[Panel]) -> list[Figure]:
    """Return two figures per panel: pushes, and fetches, that passed the gates, against the potential ones."""
    figures = []
    for panel in panels:
        for kind in ("pushes", "fetches"):
            traces, most = [], 0
            for line in panel.lines:
                for run in line.runs:
                    rows = run.metrics.iloc[thinned(len(run.metrics))]
                    potential = rows[f"potential_{kind}"]
                    traces.append(_trace(line) | {"x": potential, "y": rows[kind]})
                    most = max(most, potential.iloc[-1])
            every = {"meta": {"is": "all", "label": "all pass"}, "mode": "lines", "line": {"width": 1}}
            traces.append(every | {"hoverinfo": "skip", "x": [0, most], "y": [0, most]})
            figures.append(_figure(panel.title, traces, f"potential {kind} (copies)", f"{kind} (copies)"))
    return figures


def panels_with_probes(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels that have probes, without runs and lines that have none."""
    found = []
    for panel in panels:
        lines = []
        for line in panel.lines:  # a run that diverged before its first probe has none
            runs = [run for run in line.runs if "probe.csv" in requested_files(run.config) and len(run.probe)]
            lines += [replace(line, runs=runs)] if runs else []
        found += [replace(panel, lines=lines)] if lines else []
    return found


def probe(panels: Sequence[Panel]) -> list[Figure]:
    """Return two figures per panel: the true B-staleness during training, and against the staleness τ."""
    figures = []
    for panel in panels:
        drawn = [(line, probes_of(line)) for line in panel.lines]
        for column, title in zip(PARTS, (X["iterations"], "staleness τ (updates)"), strict=True):
            traces: list[dict[str, Any]] = []
            for line, rows in drawn:
                x, low, middle, high = quartiles(rows, column)
                traces += _band(line, x, low, high)
                traces.append(_trace(line) | {"x": x, "y": middle, "mode": "lines+markers"})
            figures.append(_figure(panel.title, traces, title, B_STALENESS))
    return figures


def _figure(panel: str, traces: list[dict[str, Any]], x: str = "", y: str = "") -> Figure:
    return {"panel": panel, "data": traces, "x": {"": {"title": x}}, "y": {"": {"title": y}}}


def _named(line: Line, what: str) -> dict[str, Any]:
    """Return the entries of a trace that name it, as what it is of its line."""
    meta = {"is": "mark", "label": visible(f"{line.label}: {what}")}
    return {"meta": meta, "legendgroup": visible(line.label), "hoverinfo": "none"}


def _trace(line: Line) -> dict[str, Any]:
    label = visible(line.label)
    group = {"meta": {"is": "line", "label": label}, "legendgroup": label, "hoverinfo": "none"}
    return group | {"mode": "lines", "line": {"width": 1.8}}


def _band(line: Line, x: Any, low: Any, high: Any) -> Iterator[dict[str, Any]]:
    """Yield a band: two invisible lines, the second with the fill between them."""
    unseen = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "legendgroup": visible(line.label)}
    unseen["meta"] = {"is": "band"}
    yield unseen | {"x": x, "y": low}
    yield unseen | {"fill": "tonexty", "x": x, "y": high}


def _curve(line: Line, axes: Sequence[str], ys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a line's traces: its band, its median, the ends of runs that diverged, and published points."""
    stepped = [x for x in axes if by_steps(line.runs, x)]
    at = {x: median_x(line.runs, x) for x in axes if x not in stepped}
    if at:
        yield from _runs(line, at, {y: by_iteration(line.runs, column_of(y)) for y in ys})
    for x in stepped:  # these have other rows for each y
        for y in ys:
            grid, values = steps(line.runs, x, column_of(y))
            yield from _runs(line, {x: grid}, {y: values})
    for run in line.runs:
        if run.has_diverged:
            last = run.metrics.iloc[-1:]
            cross = {"symbol": "x", "size": 9}
            shown = {y: last[y].where(np.isfinite(last[y]), _worst_of(run, y)) for y in ys}
            ends = {"x": {x: x_of(last, x) for x in axes}, "y": shown}
            name = _named(line, "diverged")
            yield name | {"mode": "markers", "marker": cross} | ends
    for x in axes:
        for y in ys:
            for source, points, _ in published.series(line.runs, x, y):
                circle = {"symbol": "circle-open", "size": 8}
                places: dict[str, Any] = {"x": {x: [at for at, _ in points]}, "y": {y: [value for _, value in points]}}
                name = _named(line, source)
                yield name | {"mode": "markers", "marker": circle} | places


def _goal_line(runs: Sequence[Result], axes: Sequence[str], y: str, goal: float) -> dict[str, Any]:
    """Return the trace of the value at which all runs stop, from the first x to the last."""
    ends: dict[str, Any] = {"x": {x: [0.0, max(float(x_of(run.metrics, x).iloc[-1]) for run in runs)] for x in axes}}
    meta = {"is": "all", "label": f"goal {given(goal)}"}
    trace = {"meta": meta, "mode": "lines", "line": {"width": 1, "dash": "dot"}, "hoverinfo": "skip"}
    return trace | ends | {"y": {y: [goal, goal]}}


def _worst_of(run: Result, y: str) -> float:
    """Return the worst finite value that a run had, NaN if it had none."""
    finite = run.metrics[y][np.isfinite(run.metrics[y])]
    return float(finite.min() if run.larger_is_better(y) else finite.max())


def _runs(line: Line, at: dict[str, pd.Series[float]], values: dict[str, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Yield the band and the median of a line's runs, whose values of each y have a column per run."""
    values = {y: found.where(drawable(found)) for y, found in values.items()}
    drawn = [{y: middles(line.runs, y, found) for y, found in values.items()}]
    if len(line.runs) > 1:
        values = {y: found.where(drawn[0][y].notna(), axis=0) for y, found in values.items()}
        drawn += ({y: getattr(found, end)(axis=1) for y, found in values.items()} for end in ("min", "max"))
    rows = outlined([np.asarray(column, np.float64) for columns in drawn for column in columns.values()], MEDIAN_PARTS)
    at = {x: column.iloc[rows] for x, column in at.items()}
    middle, *edges = ({y: column.iloc[rows] for y, column in columns.items()} for columns in drawn)
    if edges:
        yield from _band(line, at, *edges)
    yield _trace(line) | {"x": at, "y": middle}


def run_curve(run: Result, axes: Sequence[str], ys: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a single run's own curve, x and y by choice; of a long one the rows that show its shape."""
    rows = run.metrics.iloc[outlined([run.metrics[y].to_numpy(np.float64) for y in ys], RUN_PARTS)]
    return {"x": {x: x_of(rows, x) for x in axes}, "y": {y: rows[y] for y in ys}}


def _span(figures: Sequence[Figure], axis: str, choice: str) -> list[float | None] | None:
    """Return the smallest, largest and smallest positive number of an axis in all figures, None in place of the last.

    If there are no numbers, return None.
    """
    columns = [trace[axis].get(choice, []) for figure in figures for trace in figure["data"]]
    numbers = [value for column in columns for value in column if math.isfinite(value)]
    above = min((value for value in numbers if value > 0), default=None)
    return [min(numbers), max(numbers), above] if numbers else None
