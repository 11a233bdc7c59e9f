"""One legend for all panels of a figure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fredsim.show.plots.styles import LETTERS_PER_INCH, WIDEST, Style, take_literally
from fredsim.show.plots.titles.answers import UNBROKEN
from fredsim.show.plots.titles.questions import UNNAMED

__all__ = ["Words", "add_legend", "avoid_overlap", "is_over", "put_below_title"]

MOST_INSIDE = 6  # the most lines whose legend fits inside the axes
MOST_NAMED = 32  # the most lines that differ in colour or dash
NAMES = 12  # letters of the legend per inch
PANELS = 0.82  # the width of the panels beside a legend, as a share of the figure's without one …
FEWEST_PANELS = 0.72  # … and the least, where the figure is as wide as it may be
MOST_INSIDE_FIXED = 3  # the most lines whose legend fits inside the axes, if the figure's width is given
HANDLE = 0.45  # the width, in inches, of a line's sample before its name
LONGEST = (32, 28, 24, 20, 16, 12)  # the most letters in a line of a legend beside the panels, until it fits
ABOVE_AND_BELOW = 1.2  # inches above and below a legend beside the panels: a caption has room in the lower half
AROUND = 0.02  # inches around a legend inside a panel that are free of lines
MOST_COLUMNS = 4
Place = Literal["best", "upper right", "upper left", "lower left", "lower right", "center right", "upper center"]
PLACES: tuple[Place, ...] = get_args(Place)  # inside a panel


@dataclass(frozen=True)
class Words:
    """The title of a legend, its text for each label (by default the label), and the labels in its order."""

    title: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    order: Sequence[str] = ()


PLAIN_WORDS = Words()


def add_legend(
    figure: Figure, grid: Sequence[Axes], published: bool, place: str, style: Style, words: Words = PLAIN_WORDS
) -> bool:
    """Draw one legend: beside all panels, or if `place` is `inside` in the first of them where it fits there.

    If the style gives the figure's width, the legend is inside or above, not wider than the figure, which becomes
    higher to hold it. Return False, without a legend, if there are more than MOST_NAMED lines.
    """
    handles = _handles(grid, published, words)
    if len(handles) - published > MOST_NAMED:
        return False
    if not handles or (len(handles) == 1 and next(iter(handles)) in UNNAMED):
        return True
    if style.width is not None:
        _add_within(figure, grid, handles, place, style.width, words.title)
        return True
    width, longest = figure.get_figwidth(), max(map(len, [*handles, words.title]))
    columns = min(2, len(grid))
    if place == "inside" and len(handles) <= MOST_INSIDE and longest <= NAMES * width / columns:
        _finish(grid[0].legend(list(handles.values()), list(handles), title=words.title))
    else:
        _add_beside(figure, handles, words.title)
    return True


def avoid_overlap(
    figure: Figure, grid: Sequence[Axes], published: bool, style: Style, words: Words = PLAIN_WORDS
) -> None:
    """Move a legend inside the first panel to a place where it hides no line or band, otherwise out of the panels.

    Everything else in the figure must already be drawn.
    """
    legend = grid[0].get_legend()
    if legend is None:
        return
    for place in PLACES:
        legend.set_loc(place)
        figure.draw_without_rendering()
        if not _crosses(legend.get_window_extent().padded(AROUND * figure.dpi), grid[0]):
            return
    legend.remove()
    handles = _handles(grid, published, words)
    if style.width is None:
        _add_beside(figure, handles, words.title)
    else:
        _add_within(figure, grid, handles, "above", style.width, words.title)


def put_below_title(figure: Figure) -> None:
    """Move a legend above the panels below the figure's title, and make the figure as much higher.

    A layout gives both of them the same room.
    """
    title, engine = figure.get_suptitle(), figure.get_layout_engine()
    above = [legend for legend in figure.legends if getattr(legend, "_outside_loc", None) == "upper"]
    if not title or not above or not isinstance(engine, ConstrainedLayoutEngine):
        return
    (legend,) = above
    pad = engine.get()["h_pad"]
    text = next(one for one in figure.texts if one.get_text() == title and one.get_in_layout())
    top, room = text.get_window_extent().height / figure.dpi + pad, legend.get_window_extent().height / figure.dpi
    figure.set_figheight(figure.get_figheight() + top)
    height = figure.get_figheight()
    legend.set_bbox_to_anchor((0, 0, 1, 1 - top / height), figure.transFigure)
    engine.set(rect=(0, 0, 1, 1 - (room + 2 * pad) / height))


def _handles(grid: Sequence[Axes], published: bool, words: Words) -> dict[str, Artist]:
    """Return the legend's handles, by name; `published`: also one for the circles of published points."""
    found: dict[str, Artist] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = [*(label for label in words.order if label in found), *(one for one in found if one not in words.order)]
    handles = {words.names.get(label, label): found[label] for label in labels}
    if published:
        handles["published"] = Line2D([], [], color="0.35", marker="o", fillstyle="none", markersize=4.5, linewidth=0)
    return handles


def is_over(text: Text, axes: Axes) -> bool:
    """Return whether a text of a drawn panel lies over a line, a band, the legend or another text."""
    legend, box = axes.get_legend(), text.get_window_extent()
    others = [*([legend] if legend is not None else []), *(one for one in axes.texts if one is not text)]
    return _crosses(box, axes) or any(box.overlaps(other.get_window_extent()) for other in others)


def _crosses(box: Bbox, axes: Axes) -> bool:
    """Return whether a box lies over a line, a band or a marker of a panel."""
    lines = [(line.get_transform(), line.get_path(), False) for line in axes.lines if len(np.asarray(line.get_xdata()))]
    lines += [(patch.get_transform(), patch.get_path(), patch.get_fill()) for patch in axes.patches]
    bands = [(band.get_transform(), path, True) for band in axes.collections for path in band.get_paths()]
    return any(transform.transform_path(path).intersects_bbox(box, filled) for transform, path, filled in lines + bands)


def _finish(legend: Legend) -> Legend:
    """Show a legend's texts as they are, and its title above its entries."""
    legend.set_alignment("left")
    take_literally(legend)
    return legend


def _heading(title: str, letters: int) -> str:
    """Return a title in lines of up to so many letters; what is in brackets at its end is broken only if need be."""
    whole = re.sub(r"\([^()]*\)$", lambda found: found[0].replace(" ", UNBROKEN), title)
    lines = textwrap.wrap(whole, letters, break_long_words=False)
    kept = all(len(line) <= letters for line in lines)
    return "\n".join(lines).replace(UNBROKEN, " ") if kept else "\n".join(textwrap.wrap(title, letters))


def _add_beside(figure: Figure, handles: dict[str, Artist], title: str) -> None:
    """Draw the legend beside the panels; if long names or many lines leave too little space, enlarge the figure.

    It does not become wider than WIDEST; long names are on more lines then.
    """
    width = figure.get_figwidth()
    for letters in LONGEST:
        names = ["\n".join(textwrap.wrap(name, letters)) for name in handles]
        legend = figure.legend(
            list(handles.values()), names, loc="outside right center", title=_heading(title, letters)
        )
        box = _finish(legend).get_window_extent()
        if box.width / figure.dpi + FEWEST_PANELS * width <= WIDEST or letters == LONGEST[-1]:
            break
        legend.remove()
    figure.set_figwidth(min(max(width, box.width / figure.dpi + PANELS * width), max(width, WIDEST)))
    figure.set_figheight(max(figure.get_figheight(), box.height / figure.dpi + ABOVE_AND_BELOW))


def _add_within(
    figure: Figure, grid: Sequence[Axes], handles: dict[str, Artist], place: str, width: float, title: str
) -> None:
    """Draw the legend of a figure whose width is given."""
    names = list(handles)
    spec = grid[0].get_subplotspec()
    panel = width / (spec.get_gridspec().ncols if spec is not None else 1)
    widest = max(map(len, [*names, title])) / LETTERS_PER_INCH + HANDLE
    if place == "inside" and len(names) <= MOST_INSIDE_FIXED and widest < panel / 2:
        _finish(grid[0].legend(list(handles.values()), names, title=title))
        return
    columns = min(MOST_COLUMNS, len(names))
    while True:
        shown = "" if len(title) > LETTERS_PER_INCH * width else title
        legend = figure.legend(list(handles.values()), names, loc="outside upper center", ncols=columns, title=shown)
        _finish(legend)
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
