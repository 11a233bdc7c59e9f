"""The published points in a figure's experiments, and the rows of the table that compares them with the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fredsim.runs.folder.results import Result
from fredsim.show.plots.drawing import x_of
from fredsim.show.plots.groups import Panel

__all__ = ["Series", "at_end", "row", "series"]


class Series(NamedTuple):
    """Published points (x, y), where they were published, and the runs that they belong to."""

    source: str
    points: list[tuple[float, float]]
    runs: list[Result]


def series(runs: Sequence[Result], x: str, y: str) -> list[Series]:
    """Return the published series for these axes in the runs' experiments, each once, with its runs."""
    found: dict[str, Series] = {}
    for run in runs:
        published = run.config.get("published") or {"x": "", "y": ""}
        if (published["x"], published["y"]) != (x, y):
            continue
        for one in published["series"]:
            points = [(float(at), float(value)) for at, value in one["points"]]
            found.setdefault(repr(one), Series(published["source"], points, [])).runs.append(run)
    return list(found.values())


def at_end(runs: Sequence[Result], y: str) -> Iterator[tuple[str, float, list[Result]]]:
    """Yield (source, value, runs) for each published point at the iteration, update or second where runs ended."""
    for x in ("iterations", "updates", "seconds"):
        for found in series(runs, x, y):
            for at, value in found.points:
                ended = [run for run in found.runs if float(x_of(run.metrics, x).iloc[-1]) == at]
                if ended:
                    yield found.source, value, ended


def row(panel: Panel, line: str, at: tuple[str, Any], published: float, here: float | None) -> dict[str, Any]:
    """Return a row of the table: the published value, `here` of the runs, and the difference.

    `at` is the name and the value of x.
    """
    difference = None if here is None else here - published
    return panel.row({"line": line, at[0]: at[1], "published": published, "here": here, "difference": difference})
