"""A heat map of when lines reach a value: one row per line, one column per panel, colours relative to the column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from fredsim.show.plots.curves import first_x
from fredsim.show.plots.drawing import Drawing, Kind, Options, label_of, quantity_text
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.styles import style_of
from fredsim.show.tables import Table

__all__ = ["MATRIX"]

COLOURS = "viridis_r"
WORST = 8.0  # the ratio to the best of a column from which on all cells have the same, darkest colour
DARK = 2.8  # the ratio from which on a cell's text is white
CELL = (0.62, 0.3)  # a cell's width and height, in inches
NAMES = 26  # the most letters in a line of a column's name


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw all panels, one column each, into one Axes."""
    (axes,) = grid
    (value,) = options.reach
    style = style_of(options)
    runs = [run for panel in panels for line in panel.lines for run in line.runs]
    x = options.x or ("seconds" if all(run.timed for run in runs) else "iterations")
    lines = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    rows: list[dict[str, Any]] = []
    shades = [[math.nan] * len(panels) for _ in lines]
    for column, panel in enumerate(panels):
        found = {line.label: _when(line, x, options.y, value) for line in panel.lines}
        best = min((middle for middle, _ in found.values()), default=math.inf)
        for line in panel.lines:
            middle, count = found[line.label]
            ratio = middle / best if math.isfinite(middle) and best else math.nan
            rows.append(
                panel.row({"line": line.label, "runs": len(line.runs)})
                | {
                    f"{x} to {value:g}": _number(middle),
                    f"reached {value:g}": count,
                    "times the best": _number(ratio),
                }
            )
            row = lines.index(line.label)
            shades[row][column] = ratio
            text = "never" if math.isinf(middle) else f"{middle:.3g}" if middle < 1000 else f"{middle:,.0f}"
            colour = "white" if ratio >= DARK else "0.1" if math.isfinite(ratio) else "0.45"
            axes.text(column, row, text, ha="center", va="center", fontsize=style.dense, color=colour)
    axes.imshow(shades, cmap=COLOURS, norm=LogNorm(1.0, WORST), aspect="auto")
    beside = lines if style.width is None else [style.wrapped(line, NAMES) for line in lines]
    axes.set_yticks(range(len(lines)), beside, fontsize=style.dense + 1)
    names = [style.wrapped(panel.title, NAMES) for panel in panels]
    turned: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(panels)), names, fontsize=style.dense, **turned)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_size_inches(style.width or 2.6 + CELL[0] * len(panels), 2.2 + CELL[1] * len(lines))
    what = label_of(options.y).partition(" (")[0]
    quantity = quantity_text(x, real=any(run.live for run in runs))
    caption = (
        f"{quantity.capitalize()} to a {what} of {value:g}; of several runs the median, where one that is "
        f"never there counts as infinite. Colours: times the best of the column, the darkest {WORST:g} times or more."
    )
    return Drawing(caption, [Table(rows)])


MATRIX = Kind("when a value is reached: a heat map, one row per line, one column per panel", draw, axes=1, columns=True)


def _when(line: Line, x: str, y: str, value: float) -> tuple[float, int]:
    """Return the median of the x at which a line's runs reach a value, and how many of them do."""
    when = [first_x(run.first_row(y, value), x) for run in line.runs]
    return median(when), sum(map(math.isfinite, when))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
