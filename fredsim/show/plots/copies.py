"""Copies that passed the gates against the potential ones of a run without gates: pushes left, fetches right."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from fredsim.show.plots.drawing import Drawing, Kind, Options, default_y, final_values, share_of
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.tables import Table

__all__ = ["CAPTION", "COPIES", "final_row"]

CAPTION = "Copies that passed the gates against those that could have been made; grey: all pass."


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw one line per run; runs with the same label have the same colour and dash."""
    del options
    for axes, copies in zip(grid, ("pushes", "fetches"), strict=True):
        for line in panels[0].lines:
            for number, run in enumerate(line.runs):
                label = line.label if number == 0 else None
                x, y = run.metrics[f"potential_{copies}"], run.metrics[copies]
                axes.plot(x, y, color=line.colour, linestyle=line.dash, label=label)
        ends = [run.metrics[f"potential_{copies}"].iloc[-1] for line in panels[0].lines for run in line.runs]
        axes.plot([0, max(ends)], [0, max(ends)], color="0.6", linewidth=0.8, zorder=0)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"potential {copies} (copies)")
        axes.set_ylabel(f"{copies} (copies)")
    return Drawing(CAPTION, [Table([final_row(line) for line in panels[0].lines])])


COPIES = Kind("copies made against potential copies, pushes and fetches", draw, axes=2)


def final_row(line: Line) -> dict[str, Any]:
    """Return a line's row: medians over its runs of copies, their shares, bytes and the error at the end."""
    last = [run.metrics.iloc[-1] for run in line.runs]
    row: dict[str, Any] = {"line": line.label, "runs": len(last)}
    for copies in ("pushes", "fetches"):
        row[copies] = int(median(int(end[copies]) for end in last))
        row[f"of potential {copies}"] = float(median(share_of(end, copies) for end in last))
    row["bytes"] = int(median(int(end["bytes_pushed"] + end["bytes_fetched"]) for end in last))
    y = default_y(line.runs)
    final = final_values(line.runs, y)
    row[f"final {y}"] = median(final) if final else None
    return row
