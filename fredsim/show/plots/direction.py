"""Which way is better, said inside a panel where it hides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.text import Text

from fredsim.show.plots.axes import figure_of
from fredsim.show.plots.legends import is_over

__all__ = ["add_direction"]

FONT = 8
EDGE = 0.012  # the distance from the frame, as a share of the panel
#: Where it may stand, with how it is aligned there; the first place that is free is taken.
PLACES = (
    (EDGE, 0.02, "left", "bottom"), (1 - EDGE, 0.99, "right", "top"), (1 - EDGE, 0.02, "right", "bottom"),
    (EDGE, 0.99, "left", "top"), (0.5, 0.99, "center", "top"), (0.5, 0.02, "center", "bottom"),
    (1 - EDGE, 0.5, "right", "center"), (EDGE, 0.5, "left", "center"),
)  # fmt: skip


def add_direction(panels: Sequence[Axes], text: str) -> Text:
    """Write which way is better into the first panel with room, where it hides no line, band or legend.

    Without room it is written above the first panel.
    """
    figure = figure_of(panels[0])
    for axes in panels:
        found = _write(axes, text)
        figure.draw_without_rendering()
        for x, y, side, edge in PLACES:
            found.set(position=(x, y), horizontalalignment=side, verticalalignment=edge)
            if not is_over(found, axes):
                return found
        found.remove()
    found = _write(panels[0], text)
    found.set(position=(1, 1.01), horizontalalignment="right", verticalalignment="bottom")
    return found


def _write(axes: Axes, text: str) -> Text:
    return axes.text(0, 0, text, transform=axes.transAxes, fontsize=FONT, color="0.35", style="italic")
