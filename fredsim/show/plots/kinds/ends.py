"""How runs ended, one point per setting: against a swept value, bytes, or the share of copies that passed.

The runs of one point are drawn as their median, with whiskers from the smallest to the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from fredsim.config.figures.options import SHARES
from fredsim.config.figures.quantities import of_which_less_is_better
from fredsim.runs.folder.results import Result
from fredsim.show.plots import published
from fredsim.show.plots.axes import figure_of, log_ticks, plain_numbers, style_y, unclip
from fredsim.show.plots.drawing import (
    Drawing,
    Kind,
    Options,
    axis_unit,
    label_of,
    mark_diverged,
    marker_notes,
    worst_edge,
)
from fredsim.show.plots.finals import cost, final_middle, note_costs, note_diverged, tabulated
from fredsim.show.plots.groups import DASHES, Line, Panel, defaults_of, differing_keys, flat_config, labels
from fredsim.show.plots.hidden_lines import coinciding, tell_apart
from fredsim.show.plots.numbers import TickNumbers, cut_above, drawable, median, number
from fredsim.show.plots.titles.answers import ranked
from fredsim.show.plots.titles.end_titles import Point, cases_of, titled, x_label
from fredsim.show.plots.words import MOST_NOUNS, NOUNS, field_name, noun, place, spoken, value_name
from fredsim.show.tables import PUBLISHED, AllDigits, Table

__all__ = ["KIND"]

DECADE = 10  # the x axis is logarithmic if its largest value is more than so many times the smallest
TICKS = 8  # the most swept values that have a tick each
LETTERS = 11  # of the labels of ticks, per inch
LONGEST = 24  # the most of a word
ROOM_BELOW = 8  # how many letters of a word that is turned have room in a figure's usual height
UPWARD = 0.87  # the share of a word's length that goes upward: the sine of 60°
PANEL = 0.8  # the width of the axes, as a share of their part of the figure's
MARKERS = dict(zip(DASHES, "osDv", strict=True))  # of points, which no dash tells from others of their colour
Place = Callable[[float | str], float]  # where a point's x is on the axis


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel into each Axes."""
    points = [{line.label: _points(line, options) for line in panel.lines} for panel in panels]
    every = [point for found in points for some in found.values() for point in some]
    values = [point.x for point in every if point.x is not None]
    numbers = [value for value in values if not isinstance(value, str)]
    unit, name, places = 1.0, "", dict[str, float]()
    if len(numbers) < len(values):
        places = {text: float(place) for place, text in enumerate(_words_in_order(points, options))}
    else:
        unit, name = axis_unit(options.x or "bytes", max(numbers, default=0.0))

    def place(x: float | str) -> float:
        return places[str(x)] if places else float(x) / unit

    top = _top(every, options.y)
    names = iter(labels([point.runs[0] for point in every]))
    same = coinciding([
        {label: tuple(point.key for point in some) if any(drawable(point.middle) for point in some) else None
         for label, some in found.items()}
        for found in points
    ])  # fmt: skip
    rows: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    sources: dict[str, None] = {}
    drawn: list[dict[str, Line2D]] = []
    for axes, panel, found in zip(grid, panels, points, strict=True):
        drawn.append({})
        for line in panel.lines:
            beside += _publish(axes, panel, line, found[line.label], options, place, sources)
            if line.label in same and (
                one := _draw(axes, line, found[line.label], place, options, top, joined=not places)
            ):
                drawn[-1][line.label] = one
            rows += [_row(panel, line, point, next(names), options) for point in found[line.label]]
        turned = _style_x(axes, options, places, numbers)
        axes.set_xlabel(f"{x_label(options)} ({name})" if name else x_label(options))
    figure = figure_of(grid[0])
    figure.set_figheight(figure.get_figheight() + max(0, turned - ROOM_BELOW) * UPWARD / LETTERS)
    scale = style_y(grid, options)  # after drawing, as in curves
    tell_apart(grid, drawn)
    for axes in grid:
        unclip(axes)
    tables = [Table(rows), *([Table(beside, PUBLISHED)] if sources else [])]
    along = _along(points) if options.axis is None else ""
    text = " ".join(filter(None, (_caption(every, options, sources), along, _leaving(every, top), scale)))
    return titled(Drawing(text, tables, bool(sources)), panels, points, same, options)


KIND = Kind(draw, shared=True, shows="published")


def _words_in_order(points: Sequence[Mapping[str, Sequence[Point]]], options: Options) -> list[str]:
    """Return the words of the x axis: the best first, unless `where` lists them, or nobody knows what is best."""
    cases = [some for found in points for some in found.values()]
    given = list(dict.fromkeys(str(point.x) for some in cases for point in some if point.x is not None))
    largest = any(run.larger_is_better(options.y) for some in cases for point in some for run in point.runs)
    known = of_which_less_is_better(options.y) is not None or largest
    if not known or isinstance(options.where.get(options.axis or ""), list) or set(given) <= {"true", "false"}:
        return given
    values, fields = cases_of(points, options.y)
    return sorted(given, key=ranked(values, largest=largest, fields=fields).index)


def _style_x(axes: Axes, options: Options, places: Mapping[str, float], numbers: Sequence[float]) -> int:
    """Set the scale and the ticks of the x axis: a place for each word, or numbers.

    Returns how many letters the longest label has that is turned.
    """
    if places:
        texts = [_shortened(spoken(value_name(options.axis or "", text))) for text in places]
        flat = len(places) <= 4 and max(map(len, texts)) * len(places) <= _letters(axes)
        rotation, side = (0, "center") if flat else (60, "right")
        axes.set_xticks(list(places.values()), texts, rotation=rotation, ha=side, rotation_mode="anchor")
        return 0 if flat else max(map(len, texts))
    if numbers and 0 < min(numbers) * DECADE < max(numbers):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(log_ticks(min(numbers), max(numbers)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(TickNumbers())
        if options.axis is not None and len(ticks := sorted(set(numbers))) <= TICKS:
            texts = [number(value) for value in ticks]
            axes.set_xticks(ticks, texts)
            if not _fit(axes, ticks, texts):
                axes.tick_params("x", rotation=30)
            axes.xaxis.set_minor_locator(NullLocator())
    else:
        plain_numbers(axes, "x", whole=options.axis is not None and all(float(value).is_integer() for value in numbers))
    return 0


def _letters(axes: Axes) -> float:
    """Return how many letters have room below the axes."""
    spec = axes.get_subplotspec()
    return PANEL * LETTERS * figure_of(axes).get_figwidth() / (spec.get_gridspec().ncols if spec else 1)


def _shortened(word: str) -> str:
    """Return a word of the x axis without its middle if it is long, as a path."""
    return word if len(word) <= LONGEST else f"{word[: LONGEST // 2]}…{word[-(LONGEST // 2) :]}"


def _fit(axes: Axes, ticks: Sequence[float], texts: Sequence[str]) -> bool:
    """Return whether the labels of ascending ticks of a logarithmic axis fit beside one another."""
    places = [math.log(tick) / math.log(ticks[-1] / ticks[0]) * _letters(axes) for tick in ticks]
    halves = [(len(text) + 1) / 2 for text in texts]
    return all(b - a >= one + other for a, b, one, other in zip(places, places[1:], halves, halves[1:], strict=False))


def _publish(
    axes: Axes, panel: Panel, line: Line, points: Sequence[Point], options: Options,
    place: Place, sources: dict[str, None],
) -> list[dict[str, Any]]:  # fmt: skip
    """Draw the published points of a line, add their sources, and return the rows that compare with them."""
    rows = []
    for point in points:
        for source, value, ended in published.at_end(point.runs, options.y):
            sources[source] = None
            at = options.x or "bytes", point.x
            rows.append(published.row(panel, line.label, at, value, final_middle(ended, options.y)))
            if point.x is not None:
                axes.plot(place(point.x), value, "o", color=line.colour, fillstyle="none", markersize=6.5)
    return rows


def _points(line: Line, options: Options) -> list[Point]:
    """Return a line's points, ordered by x if it is a number; of mappings in the place of x each has its own."""
    groups: dict[str, tuple[Any, list[Result]]] = {}
    for run in line.runs:
        flat = flat_config(run)
        if options.axis is None:
            key, x = repr({key: value for key, value in flat.items() if key != "seed"}), None
        else:
            x = flat[options.axis] if options.axis in flat else defaults_of(run).get(options.axis)
            if isinstance(x, bool) or not isinstance(x, int | float | None):
                x = str(x).lower() if isinstance(x, bool) else str(x)
            key = repr((x, {key: value for key, value in flat.items() if key.startswith(f"{options.axis}.")}))
        groups.setdefault(key, (x, []))[1].append(run)
    of = options.x or "bytes"
    points = [Point(cost(runs, of) if options.axis is None else x, runs, options.y) for x, runs in groups.values()]
    return sorted(points, key=lambda point: 0.0 if point.x is None or isinstance(point.x, str) else point.x)


def _top(points: Sequence[Point], y: str) -> float:
    """Return the value at which points lie that are many decades above the others, which they would flatten.

    It is infinity if all points are shown where they are: if they span fewer decades, or less is not better.
    """
    middles = [point.middle for point in points if drawable(point.middle)]
    return cut_above(middles, median(middles)) if middles and of_which_less_is_better(y) is not None else math.inf


def _leaving(points: Sequence[Point], top: float) -> str:
    if math.isinf(top):
        return ""
    most = max(point.middle for point in points if drawable(point.middle))
    return f"△: a point lies above {number(top)}; the largest is at {number(most)}."


def _draw(
    axes: Axes, line: Line, points: Sequence[Point], place: Place, options: Options, top: float, *, joined: bool
) -> Line2D | None:
    """Draw a line's points, those without x as a horizontal line, and a cross for each run that diverged.

    What lies above `top` is drawn there. Returns the line that joins the points, if there are any.
    """
    shown: list[tuple[float, float, list[float]]] = []
    for point in points:
        middle = point.middle if drawable(point.middle) else math.nan
        finals = [value for value in point.finals if drawable(value) and drawable(middle)] or [math.nan]
        if point.x is None:
            alone = len(points) == 1
            axes.axhline(middle, color=line.colour, linestyle=":", label=line.label if alone else None)
        else:
            x = place(point.x)
            shown += [(x, middle, finals)] if point.finals else []
            for run in point.runs:
                if run.has_diverged:
                    last = float(run.metrics[options.y].iloc[-1])
                    end = x, last if last <= top else math.inf
                    mark_diverged(axes, end, line.colour, worst_edge([run], options.y))
    if not shown:
        return None
    drawn = [min(middle, top) for _, middle, _ in shown]
    low = [value - min(*finals, value) for value, (_, _, finals) in zip(drawn, shown, strict=True)]
    high = [min(max(*finals, value), top) - value for value, (_, _, finals) in zip(drawn, shown, strict=True)]
    for x, middle, _ in shown:
        if middle > top:
            axes.plot(x, top, "^", color=line.colour, fillstyle="none", markersize=6)
    found: Line2D = axes.errorbar(
        [x for x, _, _ in shown],
        drawn,
        [low, high] if any(len(finals) > 1 for _, _, finals in shown) else None,
        color=line.colour,
        linestyle=line.dash if joined else "",
        marker=MARKERS.get(line.dash, "o"),
        markersize=3.5,
        capsize=2,
        label=line.label,
    )[0]
    return found


def _caption(points: Sequence[Point], options: Options, sources: dict[str, None]) -> str:
    name = "total bytes" if (options.x or "bytes") == "bytes" else x_label(options).partition(" (")[0]
    what = label_of(options.y).partition(" (")[0]
    parts = [f"{what[0].upper()}{what[1:]} at the end of runs against {name}."]
    most = max(len(point.runs) for point in points)
    if most > 1:
        parts.append(f"Points: median of up to {most} runs; whiskers: their smallest and largest.")
        groups = [point.runs for point in points]
        parts += note_diverged(groups, options.y)
        parts += note_costs(groups, name.capitalize()) if options.axis is None else []
    elif len(points) > 1:
        parts.append("Points: one run each.")
    if any(point.x is None for point in points):
        parts.append("Dotted: runs that have no such value.")
    runs = [run for point in points for run in point.runs]
    return " ".join([*parts, *marker_notes(runs, sources, worst_edge(runs, options.y))])


def _along(points: Sequence[Mapping[str, Sequence[Point]]]) -> str:
    """Return the caption's sentence about what the points of a line differ in, besides the seed."""
    lines = [[flat_config(point.runs[0]) for point in some] for found in points for some in found.values()]
    keys = set[str]().union(*map(differing_keys, lines)) - {"seed"}
    whole = sorted(key for key in keys if not any(key.startswith(f"{other}.") for other in keys))
    names = [NOUNS.get(key) or field_name(key) for key in sorted(whole, key=place)]  # a line may be named by the rest
    what = " and ".join(names) if len(names) < MOST_NOUNS else noun(keys)
    return f"The points of a line differ in the {what}." if keys else ""


def _row(panel: Panel, line: Line, point: Point, name: str, options: Options) -> dict[str, Any]:
    """Return a point's row: how its runs ended, and how many copies they made."""
    finals = point.finals
    row = panel.row({"line": line.label})
    x = AllDigits(point.x) if isinstance(point.x, float) else point.x
    row |= {"of": name} if options.axis is None else {options.axis: x}
    row |= {"runs": len(point.runs), "diverged": sum(run.has_diverged for run in point.runs)}
    row[f"final {options.y}"] = tabulated(point.runs, options.y)
    if len(finals) > 1:
        row |= {"smallest": min(finals), "largest": max(finals)}
    row["bytes"] = int(cost(point.runs, "bytes"))
    row |= {f"of potential {copies}": cost(point.runs, copies) for copies in SHARES}
    if all(run.timed for run in point.runs):
        row["seconds"] = cost(point.runs, "seconds")
    if options.x in {"iterations", "updates"}:  # bytes, shares and seconds have columns already
        row[options.x] = point.x
    return row
