"""Lines that would hide one another.

Those of the same values are drawn once, and counted. Of those that lie almost one upon the other, the first is drawn
whole, and each of the others with gaps through which those below it are seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fredsim.show.plots.axes import figure_of

__all__ = ["MOST", "coinciding", "merged_names", "tell_apart"]

MOST_NAMED = 3  # the most lines that coincide whose names are all given
LONG = 60  # the most letters of these names
NEAR = 1.0  # the distance, in points, within which a line hides another
SHARE = 0.7  # the share of the width over which it does so
PLACES = 80  # at how many x two lines are compared
PERIOD = 9.0  # the length of a dash and its gap, as a multiple of the width of the line
MOST = 4  # the most lines that share a period
LARGER = 2.2  # how much larger, in points, the marker of a line below another is


def coinciding(panels: Sequence[Mapping[str, Hashable]]) -> dict[str, list[str]]:
    """Return the labels of lines that are drawn, each with those that coincide with it in all panels, itself first.

    `panels`: what is the same for lines that coincide there, by label; None if nothing of a line is seen there. A line
    of which nothing is seen in any panel coincides with none.
    """
    first: dict[Hashable, str] = {}
    found: dict[str, list[str]] = {}
    for label in dict.fromkeys(label for shapes in panels for label in shapes):
        shape = tuple(shapes.get(label) for shapes in panels)
        seen = any(one is not None for one in shape)
        found.setdefault(first.setdefault(shape if seen else label, label), []).append(label)
    return found


def merged_names(same: Mapping[str, Sequence[str]], entries: Mapping[str, str]) -> dict[str, str]:
    """Return what the legend calls each line with which others coincide; `entries`: its texts without that."""
    return {one: _merged_name([entries[name] for name in some]) for one, some in same.items() if len(some) > 1}


def _merged_name(names: Sequence[str]) -> str:
    """Return what the legend calls lines that coincide: all of their names if they are few, else how many."""
    if len(names) == 2 and len(" and ".join(names)) <= LONG:
        return f"{names[0]} and {names[1]} (2 lines coincide)"
    text = "; ".join(names)
    if len(names) <= MOST_NAMED and len(text) <= LONG:
        return f"{len(names)} lines coincide: {text}"
    shown = f"{names[0]}; {names[1]}; …" if len(names[0]) + len(names[1]) < LONG else f"{names[0]}; …"
    return f"{len(names)} lines coincide: {shown}"


def tell_apart(grid: Sequence[Axes], drawn: Sequence[Mapping[str, Line2D]]) -> None:
    """Dash the lines that nearly hide others, after the limits of the panels are set.

    `drawn`: each panel's lines by label, in the order in which they are drawn. A line looks alike in all panels.
    """
    groups = [group for axes, lines in zip(grid, drawn, strict=True) for group in _groups(axes, lines)]
    for label in dict.fromkeys(label for lines in drawn for label in lines):
        depth, count = max(((found.index(label), len(found)) for found in groups if label in found), default=(0, 1))
        depth, count = min(depth, MOST - 1), min(count, MOST)
        length = PERIOD * (count - depth) / count
        for line in (lines[label] for lines in drawn if label in lines):
            if depth and line.get_linestyle() == "-":
                line.set_linestyle((0.0, (length, PERIOD - length)))
            if count > 1 and line.get_marker() not in {"None", "", " ", None}:
                line.set_markersize(line.get_markersize() + LARGER * (count - 1 - depth))


def _groups(axes: Axes, lines: Mapping[str, Line2D]) -> list[list[str]]:
    """Return the labels of whole lines that hide one another."""
    axes.get_ylim()  # sets the limits, on which the places of points depend
    points = {
        label: axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]).astype(float))
        for label, line in lines.items()
        if line.get_linestyle() == "-" or _is_points(line)
    }
    apart = {label for label, line in lines.items() if _is_points(line)}
    inch = figure_of(axes).dpi
    known = {label: at[np.isfinite(at).all(axis=1)] * 72 / inch for label, at in points.items()}
    groups: list[list[str]] = []
    for label, at in known.items():
        near = next(
            (one for one in groups if any(_hides(at, known[two], points={label, two} <= apart) for two in one)), None
        )
        if near is None:
            groups.append([label])
        else:
            near.append(label)
    return [group for group in groups if len(group) > 1]


def _is_points(line: Line2D) -> bool:
    """Return whether nothing joins the points of a line, which is one alone, or words of an axis."""
    return len(np.asarray(line.get_xdata())) == 1 or line.get_linestyle() == "None"


def _hides(one: NDArray[np.float64], other: NDArray[np.float64], *, points: bool) -> bool:
    """Return whether two lines, arrays (n, 2) of points, lie upon one another for most of the width they share.

    Of `points` that nothing joins, return whether one lies upon another.
    """
    if points:
        return bool((np.abs(one[:, None] - other).max(axis=2) < NEAR).any())
    if len(one) < 2 or len(other) < 2:
        return False
    low, high = max(one[0, 0], other[0, 0]), min(one[-1, 0], other[-1, 0])
    if not low < high:
        return False
    at = np.linspace(low, high, PLACES)
    apart = np.abs(np.interp(at, *one.T) - np.interp(at, *other.T))
    return bool((apart < NEAR).mean() >= SHARE)
