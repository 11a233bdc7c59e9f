"""What clients spend their time on: the shares in which they compute, send, wait, are held, fetch, or lose it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fredsim.numerics.arrays import Integers
from fredsim.show.plots.axes import figure_of, plain_numbers
from fredsim.show.plots.drawing import Drawing, Kind, Options
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.numbers import number
from fredsim.show.plots.spans import COLOURS, STATES, shares, spans_of, window_of
from fredsim.show.plots.styles import style_of
from fredsim.show.plots.titles.answers import equals
from fredsim.show.tables import Table

__all__ = ["KIND", "add_state_labels", "bar_style", "time_caption", "time_row"]

BAR = 0.24  # the least height of a bar, in inches
LINE = 1.3  # the height of a line of its name, as a multiple of the font size
AROUND = 1.5  # the height of a panel without its bars, in inches
NAMES = 28  # the most letters in a line of a name


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel into each Axes: one bar per line, or one per client if the options select clients."""
    table, most, height = [], 1, BAR
    seen: set[str] = set()
    for axes, panel in zip(grid, panels, strict=True):
        bars = [bar for line in panel.lines for bar in _bars(line, options)]
        table += [panel.row(bar) for bar in bars]
        most = max(most, len(bars))
        left = np.zeros(len(bars))
        for state in STATES:
            widths = np.array([bar[state] for bar in bars])
            if widths.any():
                seen.add(state)
                axes.barh(range(len(bars)), widths, 0.7, left, **bar_style(state))
            left += widths
        names = [style_of(options).wrapped(_name(bar), NAMES) for bar in bars]
        axes.set_yticks(range(len(bars)), names)
        for name, text in zip(names, axes.get_yticklabels(), strict=True):
            height = max(height, len(name.split("\n")) * LINE * float(text.get_fontsize()) / 72)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_axisbelow(True)
        axes.set_xlim(0, 1)
        plain_numbers(axes, "x")
        axes.set_xlabel("share of the clients' time")
    add_state_labels(grid[0], seen)
    rows = -(-len(grid) // style_of(options).columns)
    figure_of(grid[0]).set_figheight(max(2.0, rows * (AROUND + height * most)))
    who = "the clients" if options.clients is None else f"clients {options.clients}"
    return Drawing(
        time_caption(options, f"Shares of the time of {who}"), [Table(table)], heading="the clients are",
        question="What do the clients spend their time on?", answer=_answer(table) if len(grid) == 1 else "",
    )  # fmt: skip


KIND = Kind(draw, beside=True, shows="events")


def _answer(bars: Sequence[dict[str, Any]]) -> str:
    """Return who computes for most of the time, and who for least; several in a tie."""
    names: dict[float, list[str]] = {}
    for bar in bars:
        names.setdefault(float(bar["computing"]), []).append(_name(bar))
    most, least = (
        f"{equals(names[share], len(bars))} ({number(100 * share, 3)} %)" for share in (max(names), min(names))
    )
    return f"Computing most: {most}; least: {least}" if len(names) > 1 else f"Computing: {most}"


def bar_style(state: str) -> dict[str, Any]:
    """Return the style of the bars of a state."""
    if state == "unfinished":
        return {"facecolor": "white", "edgecolor": COLOURS[state], "hatch": "//////", "linewidth": 0}
    return {"facecolor": COLOURS[state]}


def add_state_labels(axes: Axes, seen: Collection[str]) -> None:
    """Add the states in `seen` to the legend, in the order of STATES."""
    for state in filter(seen.__contains__, STATES):
        axes.barh([0], [0], label=state, **bar_style(state))


def time_caption(options: Options, what: str) -> str:
    """Return a caption that says which part of the time is shown, and explains the states."""
    begin = "" if options.begin is None else f", from second {options.begin:g}"
    end = "" if options.end is None else f", to second {options.end:g}"
    return (
        f"{what}{begin}{end}: computing; sending the push; waiting until the server is done with it; held by the "
        "server; fetching; lost, with tasks that were given up or by outages; unfinished at the run's end."
    )


def time_row(totals: Sequence[Integers]) -> dict[str, Any]:
    """Return a row with the sum of clients' times, in seconds, and the states' shares of it.

    `totals` are the clients' nanoseconds in each state, int64 (states,) each.
    """
    whole = sum(int(one.sum()) for one in totals)
    return {"client-seconds": whole / 1e9, **shares(totals)}


def _bars(line: Line, options: Options) -> list[dict[str, Any]]:
    """Return one row for all clients of a line's runs, or one per client that the options select."""
    found: dict[int, list[Integers]] = {}
    for run in line.runs:
        spans = spans_of(run)
        begin, end, clients = window_of(run, spans, options)
        totals = spans.within(begin, end).totals(int(run.config["clients"]["count"]))
        for place in range(len(totals)) if clients is None else clients:
            found.setdefault(-1 if clients is None else place, []).append(totals[place])
    rows = []
    for client, totals_of in found.items():
        which = {} if client < 0 else {"client": client}
        rows.append({"line": line.label, **which, "runs": len(line.runs), **time_row(totals_of)})
    return rows


def _name(bar: dict[str, Any]) -> str:
    return f"{bar['line']}, client {bar['client']}" if "client" in bar else str(bar["line"])
