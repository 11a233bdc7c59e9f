"""Timelines of a few clients: a panel per run, a lane per client; and trace files for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fredsim.config.figures.options import MOST_LANES, MOST_TIMELINES, client_ids
from fredsim.errors import ConfigError, option, visible
from fredsim.runs.folder.results import Result
from fredsim.show.plots.axes import figure_of, plain_numbers
from fredsim.show.plots.drawing import Drawing, Kind, Options, axis_unit
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.kinds.waits import add_state_labels, bar_style, time_caption, time_row
from fredsim.show.plots.perfetto import write_trace
from fredsim.show.plots.spans import STATES, Spans, spans_of, window_of
from fredsim.show.tables import Table

__all__ = ["KIND", "trace"]

LANES = 8  # how many clients are drawn by default
TASKS = 12  # how many tasks per client are drawn by default, on average
LANE = 0.22  # the height of a lane, in inches
AROUND = 1.1  # the height of a panel without its lanes, in inches
APART = 60  # the most tasks in a lane that are separated by thin lines


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw the clients and the times that the options select, by default the first ones, the same for all runs."""
    runs = [panel.lines[0].runs[0] for panel in panels]
    if len(runs) > MOST_TIMELINES:
        what = f"has a panel for each run, and these are {len(runs)}"
        raise ConfigError(f"the timeline: {what}; name the folders of {MOST_TIMELINES} at most")
    fewest = min(int(run.config["clients"]["count"]) for run in runs)
    if options.clients is None:
        options = replace(options, clients=f"0-{min(LANES, fewest) - 1}")
    found = [spans_of(run) for run in runs]
    if options.end is None:
        options = replace(options, end=max(map(_first, runs, found, [options] * len(runs))))
    windows = [window_of(run, spans, options) for run, spans in zip(runs, found, strict=True)]
    clients = windows[0][2] or []
    if len(clients) > MOST_LANES:
        what = f"names {len(clients)} clients, and a figure has lanes for {MOST_LANES}"
        raise ConfigError(f"{option('clients')}: {what}; a file trace.json has room for all")
    shown = [spans.within(begin, end, clients) for spans, (begin, end, _) in zip(found, windows, strict=True)]
    begin, end = windows[0][0], max(end for _, end, _ in windows)
    unit, name = axis_unit("seconds", end / 1e9)
    for axes, spans in zip(grid, shown, strict=True):
        _draw(axes, spans, clients, 1e9 * unit)
        axes.set_xlim(begin / 1e9 / unit, end / 1e9 / unit)
        axes.set_xlabel(f"simulated time ({name})")
        plain_numbers(axes, "x")
    add_state_labels(grid[0], {STATES[place] for spans in shown for place in np.unique(spans.state).tolist()})
    figure_of(grid[0]).set_figheight(max(2.0, len(grid) * (AROUND + LANE * len(clients)) + 0.4))
    question = "What does each client do, and when?"
    table = Table(_rows(panels, shown, clients))
    return Drawing(_caption(options), [table], question=question, heading="a client is")


KIND = Kind(draw, beside=True, panel_per_run=True)


def trace(panels: Sequence[Panel], path: Path, options: Options) -> Drawing:
    """Write a trace file of the clients and the times that the options select, by default all, for Perfetto."""
    shown, chosen = [], None
    for panel in panels:
        (run,) = panel.lines[0].runs
        spans = spans_of(run)
        begin, end, chosen = window_of(run, spans, options)
        shown.append(spans.within(begin, end, chosen))
    caption = _caption(options)
    write_trace(path, panels, shown, chosen, {"caption": caption, "command": visible(options.command)})
    return Drawing(caption, [Table(_rows(panels, shown, chosen))])


def _caption(options: Options) -> str:
    if options.clients is None:
        return time_caption(options, "What clients do")
    first, *others = client_ids(options.clients)
    return time_caption(options, f"What clients {options.clients} do" if others else f"What client {first} does")


def _first(run: Result, spans: Spans, options: Options) -> float:
    """Return the simulated second at which the selected clients have finished TASKS tasks each, on average."""
    begin, end, clients = window_of(run, spans, options)
    shown = spans.within(begin, end, clients)
    ends = np.sort(shown.end[shown.state == STATES.index("computing")])
    wanted = TASKS * len(clients or [])
    return float(ends[wanted - 1] if wanted <= len(ends) else end) / 1e9


def _draw(axes: Axes, spans: Spans, clients: Sequence[int], unit: float) -> None:
    """Draw one lane per client, the first at the top; `unit` is the axis's unit in nanoseconds."""
    lanes = {client: lane for lane, client in enumerate(clients)}
    tasks = np.bincount(spans.client[spans.state == STATES.index("computing")]).max(initial=0)
    apart = {"edgecolor": "white", "linewidth": 0.4} if tasks <= APART else {"linewidth": 0.0}
    for place, state in enumerate(STATES):
        of_state = spans.state == place
        for client in np.unique(spans.client[of_state]).tolist():
            some = of_state & (spans.client == client)
            begin, length = spans.begin[some] / unit, (spans.end[some] - spans.begin[some]) / unit
            bars = list(zip(begin.tolist(), length.tolist(), strict=True))
            axes.broken_barh(bars, (lanes[client] - 0.36, 0.72), **(apart | bar_style(state)))
    axes.set_yticks(range(len(clients)), [str(client) for client in clients])
    axes.set_ylim(len(clients) - 0.5, -0.5)
    axes.set_ylabel("client")
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)


def _rows(panels: Sequence[Panel], shown: Sequence[Spans], clients: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return one row per selected client; without a selection, one row per run."""
    rows = []
    for panel, spans in zip(panels, shown, strict=True):
        line = panel.lines[0]
        totals = spans.totals(int(line.runs[0].config["clients"]["count"]))
        if clients is None:
            rows.append({"run": line.label, **time_row(list(totals))})
        rows += [{"run": line.label, "client": client, **time_row([totals[client]])} for client in clients or ()]
    return rows
