"""A heat map of how lines end, or of when they reach a value: one row per line, one column per panel.

Colours are relative to the best of a column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from fredsim.config.figures.quantities import of_which_less_is_better
from fredsim.errors import ConfigError
from fredsim.show.colours import PALETTE
from fredsim.show.plots.axes import figure_of
from fredsim.show.plots.drawing import Drawing, Kind, Options, axis_unit, label_of, quantity_text
from fredsim.show.plots.finals import final_values, finals, first_x, goal_of, why_none
from fredsim.show.plots.groups import Line, Panel, flat_config
from fredsim.show.plots.headers import add_headers, neighbours
from fredsim.show.plots.numbers import median, number
from fredsim.show.plots.styles import MOST_LINES, WIDEST, Style, style_of
from fredsim.show.plots.titles.answers import MOST_WINS, in_order, leaders, ranked
from fredsim.show.plots.titles.fair import field_of
from fredsim.show.plots.titles.questions import of_one, single, which, which_is_first
from fredsim.show.plots.titles.subjects import Subject, common_server, subject_of
from fredsim.show.plots.words import head, spoken
from fredsim.show.tables import Table, as_given

__all__ = ["KIND"]

SHADES = LinearSegmentedColormap.from_list("times the best", [PALETTE[0], "#7FA2E6", "#EEF3FC"])
WORST = 8.0  # the ratio to the best of a column from which on all cells have the same, lightest colour
LIGHT = 2.2  # the ratio from which on a cell's text is dark
CELL = (0.62, 0.3)  # a cell's width and height, in inches
NAMES = 26  # the most letters in a line of a row's name
LINE = 1.25  # the height of a line of it, as a multiple of its size
LABEL = 90  # the most letters in a line of the label below the cells, of which 17.5 take an inch
HATCH: dict[str, Any] = {"hatch": "//////", "facecolor": "white", "edgecolor": "0.82", "linewidth": 0.0}


@dataclass(frozen=True)
class Cells:
    """What the cells show: for each panel a number by the line's label, infinity where there is none.

    `unit`: what numbers are divided by, its name being `suffix`. `missing`: the texts of cells without a number.
    `label` stands below the cells. `x`: the axis on which lines compete (fredsim.show.plots.titles.fair).
    """

    numbers: list[dict[str, float]]
    rows: list[dict[str, Any]]
    missing: list[dict[str, str]]
    label: str
    caption: str
    question: str
    x: str | None
    unit: float = 1.0
    suffix: str = ""


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw all panels, one column each, into one Axes."""
    (axes,) = grid
    panels = neighbours(panels)
    style = style_of(options)
    subject = subject_of(panels)
    goal = goal_of([run for panel in panels for run in panel.runs], options.y)
    reach = options.reach or (() if goal is None else (goal,))
    cells = _of_times(panels, subject, replace(options, reach=reach)) if reach else _of_ends(panels, subject, options)
    y = None if reach else options.y
    fields = [field_of({line.label: line.runs for line in panel.lines}, cells.x, y) for panel in panels]
    best = ranked(cells.numbers, fields=fields)
    lines = _rows_in_order(panels, best, subject, options)
    image = _draw_cells(axes, lines, cells, style)
    figure = figure_of(axes)
    wide = min(WIDEST, 2.6 + CELL[0] * len(panels)) if len(panels) > 4 else 6.0
    names = {line: subject.full.get(line) or line for line in lines}
    shown = [_first_lines(_wrapped(names[line], ", ", NAMES, style)) for line in lines]
    size = style.dense + (1 if style.width is None else 0)
    highest = max(CELL[1], LINE * size / 72 * max(name.count("\n") + 1 for name in shown))
    figure.set_size_inches(style.width or wide, 2.4 + highest * len(lines))
    axes.set_yticks(range(len(lines)), shown, fontsize=size)
    absent = any(line not in column for column in cells.numbers for line in lines)
    empty = "; empty: not run" if absent else ""
    ordered = lines == best and len(panels) > 1 < len(lines) and in_order(cells.numbers, fields=fields)
    order = f"; rows: {MOST_WINS}" if ordered else ""
    label = f"in a cell: {cells.label}; less is better; bold: the best of a column{empty}{order}"
    beside = max(len(line) for name in shown for line in name.split("\n"))  # the letters that take width from cells
    most = LABEL if style.width else int(17.5 * wide - 1.1 * beside)
    label = _wrapped(label, "; ", min(LABEL, most), style, 0.75)
    axes.set_xlabel(label, labelpad=6, fontsize=style.dense + (style.width is None))
    add_headers(
        axes, [replace(panel, title=head(panel.title), parts=tuple(map(head, panel.parts))) for panel in panels], style
    )
    bar = figure.colorbar(
        image, ax=axes, location="bottom", shrink=0.5 if style.width is None else 0.9, aspect=36, pad=0.02, extend="max"
    )
    bar.set_ticks([1, 2, 4, WORST], labels=["1", "2", "4", number(WORST)], fontsize=style.dense)
    bar.ax.minorticks_off()
    bar.set_label("times the best of the column", fontsize=style.dense)
    scaled = [{label: value / cells.unit for label, value in column.items()} for column in cells.numbers]
    answer = leaders(scaled, names, cells.suffix and f" {cells.suffix}", "columns", fields=fields)
    colours = f"Colours: times the best of the column, the lightest {WORST:g} times or more."
    server = "" if single(panels) else spoken(common_server(panels))  # there is no legend to say it
    question = f"{server}: {cells.question}" if server else cells.question
    return Drawing(f"{cells.caption} {colours}", [Table(cells.rows)], question=question, answer=answer)


def _first_lines(name: str) -> str:
    """Return a name without the lines beyond MOST_LINES."""
    lines = name.split("\n")
    return name if len(lines) <= MOST_LINES else "\n".join([*lines[: MOST_LINES - 1], f"{lines[MOST_LINES - 1]}…"])


def _wrapped(text: str, between: str, letters: int, style: Style, share: float = 0.4) -> str:
    """Return a text in lines of up to `letters` letters, which end where its parts do if that is enough."""
    if len(text) <= letters or style.width is not None:
        return style.wrapped(text, letters, share)
    lines: list[str] = []
    for part in text.replace(between, f"{between.strip()}\n").split("\n"):
        if lines and len(f"{lines[-1]} {part}") <= letters:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return "\n".join(lines) if all(len(line) <= letters for line in lines) else style.wrapped(text, letters, share)


KIND = Kind(draw, axes=1, columns=True)


def _of_times(panels: Sequence[Panel], subject: Subject, options: Options) -> Cells:
    """Return the x at which lines reach the value of `reach`, as the median of their runs."""
    (value,) = options.reach
    runs = [run for panel in panels for run in panel.runs]
    x = options.x or ("seconds" if all(run.timed for run in runs) else "iterations")
    found = [{line.label: _when(line, x, options.y, value) for line in panel.lines} for panel in panels]
    middles = [{label: middle for label, (middle, _) in column.items()} for column in found]
    unit, name = axis_unit(x, max((when for one in middles for when in one.values() if math.isfinite(when)), default=0))
    what = label_of(options.y).partition(" (")[0]
    real = any(run.live for run in runs)
    counted = quantity_text(x, real=real) if x == "seconds" or not name else f"{name} pushed and fetched"
    if unit != 1:
        counted = counted.replace("seconds", name)
    rows, partly = [], ""
    missing: list[dict[str, str]] = []
    for panel, column in zip(panels, found, strict=True):
        best = min(when for when, _ in column.values())
        missing.append({})
        for line in panel.lines:
            middle, count = column[line.label]
            missing[-1][line.label] = f"{count} of {len(line.runs)}" if count else "never"
            partly = missing[-1][line.label] if count and math.isinf(middle) else partly
            row = panel.row({"line": line.label, "runs": len(line.runs), f"{x} to {as_given(value)}": _number(middle)})
            rows.append(row | {f"reached {as_given(value)}": count, "times the best": _number(_ratio(middle, best))})
    caption = (
        f"{quantity_text(x, real=real).capitalize()} to a {what} of {as_given(value)}; of several runs the median, "
        "where one that never reaches it counts as infinite."
    )
    caption += f" {partly}: only so many runs reach it." if partly else ""
    label = single(panels)
    question = of_one(label, options.y, value) if label else which_is_first(subject, options.y, value)
    label = f"{counted} to a {what} of {number(value)}"
    return Cells(middles, rows, missing, label, caption, question, x, unit, name)


def _of_ends(panels: Sequence[Panel], subject: Subject, options: Options) -> Cells:
    """Return y at the end of lines, as the median of their runs. Raises ConfigError if more of it may be better."""
    if not of_which_less_is_better(options.y):
        raise ConfigError(
            f"y is {options.y}, of which less need not be better; give a matrix `reach`, or an error or a loss as y"
        )
    middles = [{line.label: median(finals(line.runs, options.y)) for line in panel.lines} for panel in panels]
    rows = []
    for panel, middle in zip(panels, middles, strict=True):
        for line in panel.lines:
            ended, at = final_values(line.runs, options.y) or [math.nan], middle[line.label]
            diverged = sum(run.has_diverged for run in line.runs)
            row = panel.row({"line": line.label, "runs": len(line.runs), "diverged": diverged})
            row |= {f"final {options.y}": _number(at), "smallest": _number(min(ended))}
            row |= {"largest": _number(max(ended)), "times the best": _number(_ratio(at, min(middle.values())))}
            rows.append(row)
    what = label_of(options.y).partition(" (")[0]
    caption = (
        f"{what[0].upper()}{what[1:]} at the end of runs; of several the median, where one that diverged counts as "
        "infinite."
    )
    missing = [{line.label: why_none(line.runs) for line in panel.lines} for panel in panels]
    label = single(panels)
    question = of_one(label, options.y) if label else which(subject, options.y)
    return Cells(middles, rows, missing, f"{what} at the end", caption, question, None)


def _rows_in_order(panels: Sequence[Panel], best: Sequence[str], subject: Subject, options: Options) -> list[str]:
    """Return the labels of the rows: the `best` first, unless they are numbers or `where` lists them."""
    given = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    if any(value is not None for value in subject.values.values()):
        return sorted(given, key=[*subject.values].index)
    keys = subject.keys if options.by is None else options.by
    if len(options.by or ()) == 1:
        found = {line.label: flat_config(line.runs[0]).get(*keys) for panel in panels for line in panel.lines}
        known = {label: value for label, value in found.items() if isinstance(value, int | float)}
        numbers = {label: float(value) for label, value in known.items() if not isinstance(value, bool)}
        if len(numbers) == len(found):
            return sorted(given, key=numbers.__getitem__)
    return given if any(isinstance(options.where.get(key), list) for key in keys) else [*best]


def _draw_cells(axes: Axes, lines: Sequence[str], cells: Cells, style: Style) -> AxesImage:
    """Draw the cells; one without a number is hatched, the best of a column is bold."""
    middles = cells.numbers
    shades = [[math.nan] * len(middles) for _ in lines]
    for place, column in enumerate(middles):
        best = min(column.values(), default=math.inf)
        for label, middle in column.items():
            row = lines.index(label)
            ratio = _ratio(middle, best)
            shades[row][place] = min(ratio, WORST)
            if math.isinf(middle):
                axes.add_patch(Rectangle((place - 0.5, row - 0.5), 1, 1, zorder=0.5, **HATCH))
            text = cells.missing[place][label] if math.isinf(middle) else number(middle / cells.unit, 3)
            weight = "bold" if math.isfinite(middle) and middle == best else "normal"
            colour = "white" if ratio < LIGHT else "0.35" if math.isnan(ratio) else "0.1"
            axes.text(place, row, text, ha="center", va="center", fontsize=style.dense, color=colour, fontweight=weight)
    image = axes.imshow(shades, cmap=SHADES, norm=LogNorm(1.0, WORST), aspect="auto")
    axes.set_xlim(-0.5, len(middles) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for place in range(1, max(len(lines), len(middles))):  # thin gaps between cells
        for line, most in ((axes.axvline, len(middles)), (axes.axhline, len(lines))):
            if place < most:
                line(place - 0.5, color="white", linewidth=0.8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _ratio(middle: float, best: float) -> float:
    """Return a number over the best of its column, NaN without one; infinity for one above a best of 0 or less."""
    if not math.isfinite(middle):
        return math.nan
    if middle == best:
        return 1.0
    return middle / best if best > 0 else math.inf


def _when(line: Line, x: str, y: str, value: float) -> tuple[float, int]:
    """Return the median of the x at which a line's runs reach a value, and how many of them do."""
    when = [first_x(run, x, y, value) for run in line.runs]
    return median(when), sum(map(math.isfinite, when))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
