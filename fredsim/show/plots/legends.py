"""One legend for all panels of a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fredsim.show.plots.styles import LETTERS, Style

__all__ = ["add_legend"]

INSIDE = 6  # most lines whose legend has room inside the axes
LOOKS = 32  # most lines that colour and dash tell apart
NAMES = 12  # letters of the legend, per inch
BESIDE = 0.45  # share of the width that a legend beside the panels may take
FEW = 3  # lines whose legend has room inside the axes of a figure of a given width
HANDLE = 0.45  # inches that a line takes in the legend before its name
MOST_COLUMNS = 4


def add_legend(figure: Figure, grid: Sequence[Axes], published: bool, place: str, style: Style) -> bool:
    """Draw one legend: above or beside all panels, or inside the first where it has room, else beside.

    Where the style gives the width, it is inside or above, as wide as the figure at most, which grows as high as it
    takes. Return whether lines are few enough for one.
    """
    handles: dict[str, Artist] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if len(handles) > LOOKS:
        return False
    if published:
        handles["published"] = Line2D([], [], color="0.35", marker="o", fillstyle="none", markersize=4.5, linewidth=0)
    if style.width is not None:
        if handles:
            _add_within(figure, grid, handles, place, style.width)
        return True
    above = place == "above"
    width, longest = figure.get_figwidth(), max(map(len, handles), default=1)
    columns = min(2, len(grid))
    inside = place == "inside" and len(handles) <= INSIDE and longest <= NAMES * width / columns
    if above:
        count = max(1, min(3, int(NAMES * width / longest)))
        legend = figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=count)
    elif inside:
        legend = grid[0].legend(list(handles.values()), list(handles))
    else:
        legend = figure.legend(list(handles.values()), list(handles), loc="outside right center", fontsize=7)
    _plain(legend)
    taken = legend.get_window_extent().width / figure.dpi
    if not (above or inside) and taken > BESIDE * width:
        figure.set_figwidth(width + taken)  # long names would leave the panels no room
    return True


def _add_within(figure: Figure, grid: Sequence[Axes], handles: dict[str, Artist], place: str, width: float) -> None:
    """Draw the legend of a figure whose width is given."""
    names = list(handles)
    spec = grid[0].get_subplotspec()
    panel = width / (spec.get_gridspec().ncols if spec is not None else 1)
    if place == "inside" and len(names) <= FEW and max(map(len, names)) / LETTERS + HANDLE < panel / 2:
        _plain(grid[0].legend(list(handles.values()), names))
        return
    columns = min(MOST_COLUMNS, len(names))
    while True:
        legend = figure.legend(list(handles.values()), names, loc="outside upper center", ncols=columns)
        _plain(legend)
        box, longest = legend.get_window_extent(), max(len(line) for name in names for line in name.split("\n"))
        over = box.width / figure.dpi - width
        if over <= 0 or longest == 1:
            figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
            return
        legend.remove()
        if columns > 1:
            columns -= 1
        else:  # a few letters less in a line, until they fit
            names = ["\n".join(textwrap.wrap(name, max(1, longest - max(1, int(over * LETTERS))))) for name in handles]


def _plain(legend: Any) -> None:
    """Set the names as they are: one may look like a formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)
