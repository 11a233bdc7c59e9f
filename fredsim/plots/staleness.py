"""Histograms of staleness: how many updates old the pushed gradients were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fredsim.plots.drawing import Drawing, Kind, Options
from fredsim.plots.groups import Line, Panel
from fredsim.tables import Table

__all__ = ["STALENESS"]

BINS = 60
SHOWN = 99.9  # percent of the pushes: the longest tail of a few would leave no room for the rest


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel in each pair of axes; the pushes of a line's runs are counted together."""
    rows = []
    for axes, panel in zip(grid, panels, strict=True):
        counted = [(line, _counts(line)) for line in panel.lines]
        end = max((_percentile(counts, SHOWN) for _, counts in counted), default=0) + 1
        width = -(-end // BINS)
        edges = np.arange(0, end + width, width)
        for number, (line, counts) in enumerate(counted):
            values, weights = (np.array(list(part), np.int64) for part in (counts.keys(), counts.values()))
            shares = np.histogram(values, edges, weights=weights)[0] / max(1, weights.sum()) / width
            thick = 1 + 3 * (len(counted) - 1 - number) / len(counted)  # lines that lie on each other can all be seen
            axes.stairs(shares, edges - 0.5, color=line.colour, linestyle=line.dash, linewidth=thick, label=line.label)
            rows.append({**({"panel": panel.title} if panel.title else {}), **_row(line, counts)})
        if options.log:
            axes.set_yscale("log")
        axes.set_xlim(left=-0.5)
        axes.set_xlabel("staleness τ (updates)")
        axes.set_ylabel("share of pushes, per update")
    caption = "Staleness of what the server applied: updates since the parameters that a gradient was computed from."
    return Drawing(f"{caption} The largest {100 - SHOWN:.1g} % are left out.", [Table(rows)])


STALENESS = Kind("histograms of the staleness of pushes", draw)


def _counts(line: Line) -> Counter[int]:
    counts: Counter[int] = Counter()
    for run in line.runs:
        counts.update(dict(zip(run.staleness["staleness"].tolist(), run.staleness["count"].tolist(), strict=True)))
    return counts


def _percentile(counts: Counter[int], percent: float) -> int:
    """Return the smallest staleness that at least this share of the pushes does not exceed."""
    values = sorted(counts)
    below = np.cumsum([counts[value] for value in values])
    return values[int(np.searchsorted(below, percent * below[-1] / 100))] if values else 0


def _row(line: Line, counts: Counter[int]) -> dict[str, object]:
    total = counts.total()
    row: dict[str, object] = {"line": line.label, "runs": len(line.runs), "pushes": total}
    if total:
        row["mean"] = sum(value * count for value, count in counts.items()) / total
        row |= {f"{percent} %": _percentile(counts, percent) for percent in (50, 95, 99)}
        row["max"] = max(counts)
    return row
