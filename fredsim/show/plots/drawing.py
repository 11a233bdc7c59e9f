"""What all kinds of figures share: options and results, columns and units, the y axis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from fredsim.config.figures.options import Options, X, Y, label_of
from fredsim.config.metrics import is_of_class
from fredsim.runs.folder.results import Result
from fredsim.show.plots.groups import PANEL_KEYS, Panel
from fredsim.show.plots.numbers import drawable
from fredsim.show.tables import Table
from fredsim.system.memory import byte_unit

__all__ = [
    "BEST_FIRST",
    "Drawing",
    "Kind",
    "Options",
    "X",
    "available_y",
    "axis_unit",
    "default_y",
    "in_nats",
    "label_of",
    "mark_diverged",
    "marker_notes",
    "quantity_text",
    "worst_edge",
    "x_of",
]

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))  # units of time and their names

BEST_FIRST = "best first"
MOST_CLASSES = 10  # the most columns of single classes that are offered


@dataclass(frozen=True)
class Drawing:
    """The result of drawing a figure: its caption, its tables, and whether it has published points.

    `question`, `answer`: the title that it has by default, and the line below that. `order`: the labels of lines in
    the order of the legend, such as the best first; `apart`: those of lines that are not compared. `merged`: what the
    legend calls a line with which others coincide, by label. `heading`: the legend's title, by default what all lines
    have in common; `first`: which lines are first in the legend. `named`: whether the lines are named where they end,
    so that no legend is needed. `better`: which way is better, "" if none is, or nobody knows.
    """

    caption: str
    tables: list[Table] = field(default_factory=list)
    published: bool = False
    question: str = ""
    answer: str = ""
    order: Sequence[str] = ()
    apart: Collection[str] = ()
    merged: Mapping[str, str] = field(default_factory=dict)
    heading: str = ""
    first: str = BEST_FIRST
    named: bool = False
    better: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    `draw` takes the axes, the panels and the options. If `axes` is 0, there is one Axes per panel, all with the same
    scales if they are `shared`; otherwise there are `axes` of them, and one panel with all runs, unless panels are
    `columns` of one Axes. `panels` are the keys, or the beginnings of keys, whose values make a panel by default.
    `panel_per_run`: there is a panel for each run, one below the other. `beside`: the legend is always beside the
    panels, even if it is short. `shows`: what it shows that not all runs have (fredsim.show.plots.groups.RECORDED).
    """

    draw: Callable[[Sequence[Axes], Sequence[Panel], Options], Drawing]
    axes: int = 0
    shared: bool = False
    panels: tuple[str, ...] = PANEL_KEYS
    panel_per_run: bool = False
    columns: bool = False
    beside: bool = False
    shows: str = ""


def marker_notes(runs: Iterable[Result], sources: Collection[str], place: str) -> list[str]:
    """Return the sentences of a caption about crosses (runs that diverged) and circles (published points).

    `place`: where the cross of a run stands whose last value is not finite.
    """
    ended = [(run.ending, run.not_finite) for run in runs]
    crosses = ["×: a run diverged."] if "diverged" in (ending for ending, _ in ended) else []
    if names := sorted({name for _, name in ended if name}):
        what = " or ".join("a loss" if name == "loss" else f"a {name}" for name in names)
        crosses = [f"×: a run diverged, or ended with {what} that is not finite (such a value is {place})."]
    published = [f"Circles: published ({'; '.join(sources)})."] if sources else []
    return [*crosses, *published]


def worst_edge(runs: Iterable[Result], y: str) -> str:
    """Return at which edge of a panel the crosses of runs stand whose last value is not finite: where y is worst."""
    return "at the lower edge" if any(run.larger_is_better(y) for run in runs) else "at the upper edge"


def mark_diverged(axes: Axes, at: tuple[float, float], colour: str, edge: str) -> None:
    """Draw a cross where a run that diverged ended, (x, y); at the `edge` (`worst_edge`) if y is not finite."""
    x, y = at
    of_panel: dict[str, Any] = {} if drawable(y) else {"transform": axes.get_xaxis_transform()}
    place = y if drawable(y) else float(edge == "at the upper edge")
    axes.plot(x, place, "x", color=colour, markersize=7, clip_on=False, **of_panel)


def available_y(results: Sequence[Result]) -> list[str]:
    """Return the columns of `Y` and those of metrics that all runs have, without those that are NaN in every row.

    If there are many of single classes, these are left out.
    """
    metrics = [*dict.fromkeys(name for run in results for name in run.own_metrics)]
    if sum(map(is_of_class, metrics)) > MOST_CLASSES:
        metrics = [name for name in metrics if not is_of_class(name)]
    present = [y for y in (*Y, *metrics) if all(y in run.metrics for run in results)]
    return [y for y in present if any(run.metrics[y].notna().any() for run in results)] or present


def in_nats(results: Iterable[Result]) -> bool:
    """Return whether the losses of runs are all −log of a probability."""
    configs = [run.config for run in results]
    losses = [config.get("loss") or {} for config in configs]
    return not any("problem" in config for config in configs) and all(
        loss.get("name", "cross_entropy") in {"cross_entropy", "bce"} for loss in losses
    )


def default_y(results: Sequence[Result]) -> str:
    """Return the y that is drawn by default: the error; or the gap, or else the loss, if no run has an error.

    Of problems of the user's own it is what their classes say, if that is the same.
    """
    own = {run.measure if "problem" in run.config else "" for run in results}
    if len(own) == 1 and "" not in own:
        return own.pop()
    if "validation_error" in (known := available_y(results)):
        return "validation_error"
    return "gap" if "gap" in known else "validation_loss"


def x_of(metrics: pd.DataFrame, x: str) -> pd.Series[float]:
    """Return the column of metrics.csv for an x axis; for `bytes`, the sum of bytes pushed and fetched."""
    if x == "bytes":
        return metrics["bytes_pushed"] + metrics["bytes_fetched"]
    return metrics[{"iterations": "iteration", "updates": "timestamp", "seconds": "time"}[x]]


def axis_unit(x: str | None, largest: float) -> tuple[float, str]:
    """Return the unit of an axis with values up to `largest`: its size in bytes or seconds, and its name.

    For an axis of anything else, return 1 and an empty name.
    """
    if x == "bytes":
        unit, name = byte_unit(largest)
        return unit, "bytes" if name == "B" else name
    if x == "seconds":
        return next(((unit, name) for unit, name in SECONDS if largest >= unit), SECONDS[-1])
    return 1.0, ""


def quantity_text(x: str, *, real: bool) -> str:
    """Return what an axis of `X` counts, for captions; `real`: at least one run was live, with real seconds."""
    return {"bytes": "pushed and fetched bytes", "seconds": "seconds" if real else "simulated seconds"}.get(x, x)
