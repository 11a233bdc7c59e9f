"""What a figure of ends says: its points, its question and answer, and the names of its axis and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fredsim.config.figures.options import SHARES
from fredsim.runs.folder.results import Result
from fredsim.show.plots.coinciding import merged_name
from fredsim.show.plots.drawing import Drawing, Options, X, final_values
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.questions import UNNAMED, leaders, of_which_less_is_better, ranked, single
from fredsim.show.plots.titles.subjects import subject_of
from fredsim.show.plots.words import SYMBOLS, name_of, noun, value_name

__all__ = ["Point", "titled", "x_label"]

GROWING = ("clients.count",)  # keys that no one chooses for the smallest error
COSTS = {
    "bytes": "bytes pushed and fetched", "iterations": "iterations", "updates": "updates",
    "seconds": "simulated time", "pushes": "share of pushes that pass", "fetches": "share of fetches that pass",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """Runs that differ only in their seed, or have the same value on the x axis.

    `x` is None if they do not have its key, or have null there.
    """

    x: float | str | None
    runs: list[Result]


def titled(
    drawing: Drawing, panels: Sequence[Panel], points: Sequence[Mapping[str, Sequence[Point]]],
    same: Mapping[str, Sequence[str]], options: Options,
) -> Drawing:  # fmt: skip
    """Return a drawing with its question and answer, and the order and the names of the legend."""
    subject, y, label = subject_of(panels), options.y, single(panels)
    merged = {one: merged_name([subject.entries[name] for name in some]) for one, some in same.items() if len(some) > 1}
    name, adjective = of_which_less_is_better(y) or (y, "")
    x = x_label(options).partition(" (")[0]
    if not adjective:
        return replace(drawing, question=f"How does {name} depend on {x}?", merged=merged)
    far = options.axis in GROWING
    best = [_best(panel, found, same, y, far=far) for panel, found in zip(panels, points, strict=True)]
    finals = [{one: value for one, (value, _) in found.items()} for found in best]
    of = "" if label in UNNAMED else f" of {label}"
    answer = "" if label else leaders(finals, _placed(best, subject.full, options))
    words = isinstance(next(iter(best[0].values()))[1], str)
    if options.axis is None:
        question = f"How does the {name}{of} depend on the {COSTS[options.x or 'bytes']}?"
    elif words:
        question = f"Which {noun({options.axis})} has the {adjective} {name}?"
        cases = [[*some] for found in points for one, some in found.items() if one in same]
        by_word = [{str(point.x): _middle(point, y) for point in some} for some in cases]
        named = {word: value_name(options.axis, word) for found in by_word for word in found}
        answer = leaders(by_word, named, panels="cases")
    elif label:
        question = f"At which {x} is the {name}{of} {adjective}?"
        (value, at), *more = (found[label] for found in best if label in found)
        answer = f"At {x} = {number(float(at or 0))} ({number(value)})" if not more and at is not None else ""
    elif options.axis in GROWING:
        question = f"Which {subject.noun} keeps the {adjective} {name} as {x} grows?"
    else:
        question = f"Which {subject.noun} has the {adjective} {name}, and at which {x}?"
    return replace(drawing, question=question, answer=answer, order=ranked(finals), merged=merged)


def _middle(point: Point, y: str) -> float:
    finals = final_values(point.runs, y)
    return median(finals) if finals else math.inf


def _best(
    panel: Panel, points: Mapping[str, Sequence[Point]], same: Mapping[str, Sequence[str]], y: str, *, far: bool
) -> dict[str, tuple[float, float | str | None]]:
    """Return the smallest value of each line that is drawn, or the one that is `far` on the axis, and where it is."""
    found: dict[str, tuple[float, float | str | None]] = {}
    for line in panel.lines:
        if line.label in same:
            middles = [(_middle(point, y), point.x) for point in points[line.label]]
            middles = middles[-1:] if far else middles
            found[line.label] = min(middles, key=lambda one: one[0] if math.isfinite(one[0]) else math.inf)
    return found


def _placed(
    best: Sequence[Mapping[str, tuple[float, float | str | None]]], names: Mapping[str, str], options: Options
) -> dict[str, str]:
    """Return the names of lines; in a figure of one panel against a key, with where their best value is."""
    if len(best) > 1 or options.axis is None:
        return dict(names)
    x = name_of(options.axis)
    places = {label: at for label, (_, at) in best[0].items() if at is not None}
    shown = {label: at if isinstance(at, str) else f"{x} = {number(at)}" for label, at in places.items()}
    return {label: f"{name} at {shown[label]}" if label in shown else name for label, name in names.items()}


def x_label(options: Options) -> str:
    """Return the label of the x axis."""
    if options.x in SHARES:
        return f"share of {options.x} that passed"
    if options.axis is None:
        return X[options.x or "bytes"]
    last = options.axis.rpartition(".")[2]
    if last == "name":
        return options.axis.removesuffix(".name")
    return f"{SYMBOLS.get(options.axis, last)} ({options.axis})"
