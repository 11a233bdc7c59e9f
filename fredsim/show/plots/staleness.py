"""Histograms of the staleness of pushes, in updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fredsim.show.plots.axes import logarithmic
from fredsim.show.plots.drawing import Drawing, Kind, Options
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CAPTION", "STALENESS", "Histogram", "final_row", "histograms"]

BINS = 60
SHOWN = 99.9  # the percentage of pushes that is shown; a long tail would compress the rest of the axis
CAPTION = (
    "Staleness of what the server applied: updates since the parameters that a gradient was computed from."
    f" The largest {100 - SHOWN:.1g} % are left out."
)


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel into each Axes."""
    rows = []
    for axes, panel in zip(grid, panels, strict=True):
        for number, (line, counts, edges, shares) in enumerate(histograms(panel.lines)):
            count = len(panel.lines)
            width = 1 + 3 * (count - 1 - number) / count  # so that lines that coincide are all visible
            axes.stairs(shares, edges, color=line.colour, linestyle=line.dash, linewidth=width, label=line.label)
            rows.append(panel.row(final_row(line, counts)))
        if options.log:
            logarithmic([axes])
        axes.set_xlim(left=-0.5)
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
        axes.set_xlabel("staleness τ (updates)")
        axes.set_ylabel("share of pushes, per update")
    return Drawing(CAPTION, [Table(rows)])


STALENESS = Kind("histograms of the staleness of pushes", draw)


class Histogram(NamedTuple):
    """A line's histogram.

    `counts` are the numbers of pushes, indexed by ascending staleness; `shares` (n,) are the shares of pushes, per
    update, between `edges` (n + 1,).
    """

    line: Line
    counts: pd.Series[int]
    edges: NDArray[Any]
    shares: NDArray[Any]


def histograms(lines: Sequence[Line]) -> list[Histogram]:
    """Return one histogram per line, all with the same edges; the pushes of a line's runs are counted together."""
    counted = [(line, counts_of(line)) for line in lines]
    end = max((_percentile(counts, SHOWN) for _, counts in counted), default=0) + 1
    width = -(-end // BINS)
    edges = np.arange(0, end + width, width)
    found = []
    for line, counts in counted:
        shares = np.histogram(counts.index, edges, weights=counts)[0] / max(1, counts.sum()) / width
        found.append(Histogram(line, counts, edges - 0.5, shares))
    return found


def counts_of(line: Line) -> pd.Series[int]:
    """Return the number of pushes of a line's runs by staleness, ascending."""
    import pandas as pd

    return pd.concat([run.staleness for run in line.runs]).astype(np.int64).groupby("staleness")["count"].sum()


def _percentile(counts: pd.Series[int], percent: float) -> int:
    """Return the smallest staleness that at least `percent` percent of the pushes do not exceed."""
    place = int(np.searchsorted(counts.cumsum(), percent * counts.sum() / 100))
    return int(counts.index[place]) if len(counts) else 0


def final_row(line: Line, counts: pd.Series[int]) -> dict[str, object]:
    """Return a line's row: its pushes, and mean, percentiles and maximum of their staleness."""
    total = int(counts.sum())
    row: dict[str, object] = {"line": line.label, "runs": len(line.runs), "pushes": total}
    if total:
        row["mean"] = int((counts.index * counts).sum()) / total
        row |= {f"{percent} %": _percentile(counts, percent) for percent in (50, 95, 99)}
        row["max"] = int(counts.index[-1])
    return row
