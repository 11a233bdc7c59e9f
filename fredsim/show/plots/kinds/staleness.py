"""The distribution of the staleness of pushes, in updates: the shares that are so stale or more, and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator
from numpy.typing import NDArray

from fredsim.show.plots.axes import plain_numbers, scale_y, unclip
from fredsim.show.plots.drawing import Drawing, Kind, Options
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.hidden_lines import coinciding, merged_names
from fredsim.show.plots.numbers import TickNumbers, number
from fredsim.show.plots.titles.answers import ranked
from fredsim.show.plots.titles.subjects import subject_of
from fredsim.show.plots.words import head
from fredsim.show.tables import Table

__all__ = ["CAPTION", "KIND", "SHOWN", "counts_of", "different", "final_row", "percentile"]

HIGHEST = 1.5  # the most that the y axis shows; no share is above 1
FAR = 30  # how many times another's a line's largest staleness must be for a logarithmic x axis
SHOWN = 99.9  # the percentage of pushes that is shown; a long tail would compress the rest of the axis
WHAT = "Staleness of what the server applied: updates since the parameters that a gradient was computed from."
CAPTION = f"{WHAT} The largest {100 - SHOWN:.1g} % are left out."


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel into each Axes: for each staleness, the share of pushes that have it or more."""
    counts = [{line.label: counts_of(line) for line in panel.lines} for panel in panels]
    tails = [{label: _tail(found) for label, found in one.items()} for one in counts]
    same = coinciding([{one: tuple(map(bytes, tail)) for one, tail in found.items()} for found in tails])
    rows = []
    for axes, panel, one, found in zip(grid, panels, tails, counts, strict=True):
        rows += [panel.row(final_row(line, found[line.label])) for line in panel.lines]
        for line in panel.lines:
            at, shares = one[line.label]
            if line.label in same and len(at):
                style: dict[str, Any] = {"color": line.colour, "linestyle": line.dash, "label": line.label}
                axes.plot(at, shares, drawstyle="steps-pre", marker="o", markersize=3, markevery=[-1], **style)
        scale_y([axes], options.log is not False, from_zero=True)
        axes.set_ylim(top=min(axes.get_ylim()[1], HIGHEST))
        _style_x(axes, [at[-1] for at, _ in one.values() if len(at)])
        axes.set_ylabel("share of pushes with τ or more")
        unclip(axes)
    text = f"{WHAT} At each staleness, the share of pushes that have it or more; a dot: the largest."
    merged = merged_names(same, subject_of(panels).entries)
    means = [{label: _mean(found) for label, found in one.items() if label in same and len(found)} for one in counts]
    return Drawing(
        text, [Table(rows)], question="How stale are the gradients that the server applies?",
        answer=_answer(panels, means, merged), order=ranked(means), merged=merged, first="least stale first",
        better="↙ fresher",
    )  # fmt: skip


KIND = Kind(draw)


def _style_x(axes: Axes, largest: Sequence[int]) -> None:
    """Set the x axis; it is logarithmic from 1 on if one line's largest staleness is many times another's."""
    axes.set_xlabel("staleness τ (updates)")
    if largest and max(largest) > FAR * (min(largest) + 1):
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, max(largest))
        powers = [10**power for power in range(len(str(max(largest))))]
        axes.xaxis.set_major_locator(FixedLocator([0, *powers]))
        axes.xaxis.set_major_formatter(TickNumbers())
        return
    plain_numbers(axes, "x", whole=True)
    axes.set_xlim(0, max([*largest, 1]))


def _answer(panels: Sequence[Panel], means: Sequence[Mapping[str, float]], merged: Mapping[str, str]) -> str:
    """Return which line is the least stale on average, and which the most; or which panel, if each has one line."""
    if len(means) == 1 and means[0]:
        full, found = {**subject_of(panels).full, **merged}, means[0]
        if len(found) == 1:
            return f"{number(min(found.values()))} on average"
        least, most = (
            f"{full[label]}, {number(found[label])} on average"
            for label in (min(found, key=found.__getitem__), max(reversed([*found]), key=found.__getitem__))
        )
        return f"Least stale: {least}; most: {most}"
    if all(len(one) == 1 for one in means):
        found = {head(title): next(iter(one.values())) for title, one in zip(different(panels), means, strict=True)}
        least, most = (
            f"{number(found[title])} with {title}"
            for title in (min(found, key=found.__getitem__), max(found, key=found.__getitem__))
        )
        return f"On average {least}, {most}"
    return ""


def different(panels: Sequence[Panel]) -> list[str]:
    """Return the titles of panels without the parts that all of them have."""
    common = set(panels[0].parts).intersection(*(panel.parts for panel in panels))
    return [", ".join(part for part in panel.parts if part not in common) or panel.title for panel in panels]


def _mean(counts: pd.Series[int]) -> float:
    return int((counts.index * counts).sum()) / int(counts.sum())


def _tail(counts: pd.Series[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return staleness, ascending from 0, and for each the share of pushes that have it or more."""
    if not len(counts):
        return np.zeros(0, np.int64), np.zeros(0)
    at, found = counts.index.to_numpy(np.int64), counts.to_numpy(np.int64)
    more = found[::-1].cumsum()[::-1]
    if at[0] > 0:
        at, more = np.append(0, at), np.append(more[0], more)
    return at, more / more[0]


def counts_of(line: Line) -> pd.Series[int]:
    """Return the number of pushes of a line's runs by staleness, ascending."""
    return pd.concat([run.staleness for run in line.runs]).astype(np.int64).groupby("staleness")["count"].sum()


def percentile(counts: pd.Series[int], percent: float) -> int:
    """Return the smallest staleness that at least `percent` percent of the pushes do not exceed."""
    place = int(np.searchsorted(counts.cumsum(), percent * counts.sum() / 100))
    return int(counts.index[place]) if len(counts) else 0


def final_row(line: Line, counts: pd.Series[int]) -> dict[str, object]:
    """Return a line's row: its pushes, and mean, percentiles and maximum of their staleness."""
    total = int(counts.sum())
    row: dict[str, object] = {"line": line.label, "runs": len(line.runs), "pushes": total}
    if total:
        row["mean"] = _mean(counts)
        row |= {f"{percent} %": percentile(counts, percent) for percent in (50, 95, 99)}
        row["max"] = int(counts.index[-1])
    return row
