"""One legend for all panels of a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, get_args

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from fredsim.show.plots.styles import LETTERS_PER_INCH, Style, take_literally

__all__ = ["add_legend", "avoid_overlap"]

MOST_INSIDE = 6  # the most lines whose legend fits inside the axes
MOST_NAMED = 32  # the most lines that differ in colour or dash
NAMES = 12  # letters of the legend per inch
WIDEST_BESIDE = 0.45  # the largest share of the width that a legend beside the panels may take
MOST_INSIDE_FIXED = 3  # the most lines whose legend fits inside the axes, if the figure's width is given
HANDLE = 0.45  # the width, in inches, of a line's sample before its name
MOST_COLUMNS = 4
Place = Literal["best", "upper right", "upper left", "lower left", "lower right", "center right", "upper center"]
PLACES: tuple[Place, ...] = get_args(Place)  # inside a panel


def add_legend(figure: Figure, grid: Sequence[Axes], published: bool, place: str, style: Style) -> bool:
    """Draw one legend: at `place` above or beside all panels, or inside the first if it fits there, else beside them.

    If the style gives the figure's width, the legend is inside or above, not wider than the figure, which becomes
    higher to hold it. Return False, without a legend, if there are more than MOST_NAMED lines.
    """
    handles = _handles(grid, published)
    if len(handles) - published > MOST_NAMED:
        return False
    if style.width is not None:
        if handles:
            _add_within(figure, grid, handles, place, style.width)
        return True
    above = place == "above"
    width, longest = figure.get_figwidth(), max(map(len, handles), default=1)
    columns = min(2, len(grid))
    inside = place == "inside" and len(handles) <= MOST_INSIDE and longest <= NAMES * width / columns
    if above:
        count = max(1, min(3, int(NAMES * width / longest)))
        legend = figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=count)
    elif inside:
        legend = grid[0].legend(list(handles.values()), list(handles))
    else:
        _add_beside(figure, handles)
        return True
    take_literally(legend)
    return True


def avoid_overlap(figure: Figure, grid: Sequence[Axes], published: bool, style: Style) -> None:
    """Move a legend inside the first panel to a place where it hides no line or band, otherwise out of the panels.

    Everything else in the figure must already be drawn.
    """
    legend = grid[0].get_legend()
    if legend is None:
        return
    for place in PLACES:
        legend.set_loc(place)
        figure.draw_without_rendering()
        if not _hides(legend, grid[0]):
            return
    legend.remove()
    handles = _handles(grid, published)
    if style.width is None:
        _add_beside(figure, handles)
    else:
        _add_within(figure, grid, handles, "above", style.width)


def _handles(grid: Sequence[Axes], published: bool) -> dict[str, Artist]:
    """Return the legend's handles, by name; `published`: also one for the circles of published points."""
    handles: dict[str, Artist] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if published:
        handles["published"] = Line2D([], [], color="0.35", marker="o", fillstyle="none", markersize=4.5, linewidth=0)
    return handles


def _hides(legend: Legend, axes: Axes) -> bool:
    """Return whether a legend lies over a line or a band of its panel."""
    box = legend.get_window_extent()
    lines = [(line.get_transform(), line.get_path(), False) for line in axes.lines]
    bands = [(band.get_transform(), path, True) for band in axes.collections for path in band.get_paths()]
    return any(transform.transform_path(path).intersects_bbox(box, filled) for transform, path, filled in lines + bands)


def _add_beside(figure: Figure, handles: dict[str, Artist]) -> None:
    """Draw the legend beside the panels; if long names would leave too little space for these, widen the figure."""
    legend = figure.legend(list(handles.values()), list(handles), loc="outside right center", fontsize=7)
    take_literally(legend)
    width, taken = figure.get_figwidth(), legend.get_window_extent().width / figure.dpi
    if taken > WIDEST_BESIDE * width:
        figure.set_figwidth(width + taken)


def _add_within(figure: Figure, grid: Sequence[Axes], handles: dict[str, Artist], place: str, width: float) -> None:
    """Draw the legend of a figure whose width is given."""
    names = list(handles)
    spec = grid[0].get_subplotspec()
    panel = width / (spec.get_gridspec().ncols if spec is not None else 1)
    widest = max(map(len, names)) / LETTERS_PER_INCH + HANDLE
    if place == "inside" and len(names) <= MOST_INSIDE_FIXED and widest < panel / 2:
        take_literally(grid[0].legend(list(handles.values()), names))
        return
    columns = min(MOST_COLUMNS, len(names))
    while True:
        legend = figure.legend(list(handles.values()), names, loc="outside upper center", ncols=columns)
        take_literally(legend)
        box, longest = legend.get_window_extent(), max(len(line) for name in names for line in name.split("\n"))
        over = box.width / figure.dpi - width
        if over <= 0 or longest == 1:
            figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
            return
        legend.remove()
        if columns > 1:
            columns -= 1
        else:  # shorten the lines by a few letters, until they fit
            names = [
                "\n".join(textwrap.wrap(name, max(1, longest - max(1, int(over * LETTERS_PER_INCH)))))
                for name in handles
            ]
