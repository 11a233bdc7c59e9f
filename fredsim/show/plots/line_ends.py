"""The names of lines where these end, moved apart so that none hides another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from fredsim.show.plots.axes import figure_of
from fredsim.show.plots.styles import take_literally

__all__ = ["End", "apart", "name_ends"]

ROOM = 1.25  # the distance between names, as a multiple of their size
BESIDE = 1.025  # where the names begin, as a multiple of the width of the panel
FONT = 7.5


class End(NamedTuple):
    """Where a line ends, in the values of the axes, and how it is named there."""

    x: float
    y: float
    name: str
    colour: str


def apart(wanted: Sequence[float], room: float, low: float, high: float) -> list[float]:
    """Return places for names in the order of the wanted ones: `room` apart, between low and high, which have room.

    Names that would overlap form a group around the mean of the places they want.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    groups: list[list[int]] = []

    def middle(group: Sequence[int]) -> float:
        half = (len(group) - 1) * room / 2
        mean = sum(wanted[index] for index in group) / len(group)
        return min(max(mean, low + half), high - half)

    for index in order:
        groups.append([index])
        while len(groups) > 1:
            below, above = groups[-2:]
            gap = middle(above) - middle(below) - (len(below) + len(above) - 2) * room / 2
            if gap >= room * (1 - 1e-9):
                break
            groups[-2:] = [below + above]
    places = [0.0] * len(wanted)
    for group in groups:
        first = middle(group) - (len(group) - 1) * room / 2
        for place, index in enumerate(group):
            places[index] = first + place * room
    return places


def name_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write the names of lines to the right of the panel, each joined to the end of its line by a thin one.

    The panel becomes high enough for them. Its limits must be set.
    """
    figure = figure_of(axes)
    figure.draw_without_rendering()
    inch = ROOM * FONT / 72
    height = axes.get_window_extent().height / figure.dpi
    if (lacking := len(ends) * inch - height) > 0:
        figure.set_figheight(figure.get_figheight() + lacking)
        figure.draw_without_rendering()
        height = axes.get_window_extent().height / figure.dpi
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [float(to_axes.transform((end.x, end.y))[1]) for end in ends]
    places = apart(wanted, inch / height, 0.0, 1.0)
    for end, place in zip(ends, places, strict=True):
        joined = {"arrowstyle": "-", "color": end.colour, "linewidth": 0.5, "alpha": 0.6, "shrinkA": 1, "shrinkB": 0}
        name = axes.annotate(
            end.name, (end.x, end.y), (BESIDE, place), xycoords="data", textcoords="axes fraction", fontsize=FONT,
            va="center", ha="left", color=end.colour, annotation_clip=False,
            arrowprops=joined | {"relpos": (0.0, 0.5)},
        )  # fmt: skip
        take_literally(name)
