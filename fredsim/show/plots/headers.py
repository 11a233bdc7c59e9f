"""The heads of a matrix's columns: flat where they fit, and in two levels if the columns come in groups."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from fredsim.show.plots.axes import figure_of
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.styles import LETTERS_PER_INCH, Style, cut_lines, take_literally

__all__ = ["add_headers", "groups_of", "neighbours"]

MOST_LINES = 4  # the most lines of a head that is flat
TURNED = 20  # the most letters in a line of a head that is turned
FEWEST = 2  # the fewest columns of a group
GAP = 0.06  # inches between the two levels


def neighbours(panels: Sequence[Panel]) -> list[Panel]:
    """Return the columns in an order in which those of the same group stand beside one another."""
    if any(len(panel.parts) < 2 for panel in panels):
        return [*panels]
    heads = list(dict.fromkeys(panel.parts[0] for panel in panels))
    return sorted(panels, key=lambda panel: heads.index(panel.parts[0]))


def groups_of(panels: Sequence[Panel]) -> list[tuple[str, list[str]]]:
    """Return the groups of neighbouring columns, each with its head and those of its columns.

    There is one group without a head if columns have a single key, or if one would be a group of its own.
    """
    titles = [panel.title for panel in panels]
    if any(len(panel.parts) < 2 for panel in panels):
        return [("", titles)]
    found = [(head, [*some]) for head, some in groupby(panels, key=lambda panel: panel.parts[0])]
    heads = [head for head, _ in found]
    if min(len(some) for _, some in found) < FEWEST or len(set(heads)) < len(heads) or len(heads) == 1:
        return [("", titles)]
    return [
        (head, [panel.title.removeprefix(head).removeprefix(", ") or panel.title for panel in some])
        for head, some in found
    ]


def add_headers(axes: Axes, panels: Sequence[Panel], style: Style) -> None:
    """Write the heads above the columns. The figure must have its size."""
    figure = figure_of(axes)
    groups = groups_of(panels)
    names = [name for _, some in groups for name in some]
    figure.draw_without_rendering()
    letters = int(axes.get_window_extent().width / figure.dpi / len(names) * LETTERS_PER_INCH * 7 / style.dense)
    flat = [textwrap.wrap(name, max(1, letters), break_long_words=False) for name in names]
    fits = all(len(lines) <= MOST_LINES and all(len(line) <= letters for line in lines) for lines in flat)
    axes.xaxis.tick_top()
    axes.tick_params("x", length=0, pad=2)
    if fits:
        texts = ["\n".join(lines) for lines in flat]
        axes.set_xticks(range(len(names)), texts, fontsize=style.dense, rotation=0, ha="center")
    else:
        texts = [cut_lines(name, TURNED, MOST_LINES) for name in names]
        axes.set_xticks(range(len(names)), texts, fontsize=style.dense, rotation=90, ha="center", va="bottom")
    if len(groups) < 2:
        return
    figure.draw_without_rendering()
    top = max(label.get_window_extent().y1 for label in axes.get_xticklabels()) - axes.get_window_extent().y1
    above = top / figure.dpi + GAP
    moved = axes.get_xaxis_transform() + ScaledTranslation(0, above, figure.dpi_scale_trans)
    place = 0
    for head, some in groups:
        first, last = place - 0.5, place + len(some) - 0.5
        axes.add_artist(
            Line2D([first + 0.12, last - 0.12], [1, 1], transform=moved, color="0.3", linewidth=0.8, clip_on=False)
        )
        text = axes.annotate(
            head, ((first + last) / 2, 1), (0, 72 * (above + GAP / 2)), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha="center", va="bottom", fontsize=style.dense + 1, annotation_clip=False,
            fontweight="bold",
        )  # fmt: skip
        take_literally(text)
        if place:
            axes.axvline(first, color="white", linewidth=4)
        place += len(some)
