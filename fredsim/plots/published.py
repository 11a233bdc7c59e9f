"""The published points of the experiments behind a figure, and the table that sets them beside what came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fredsim.plots.drawing import x_of
from fredsim.results import Result

__all__ = ["at_end", "row", "series"]


Points = list[tuple[float, float]]


def series(runs: Sequence[Result], x: str, y: str) -> Iterator[tuple[str, Points]]:
    """Yield the published points of the runs' experiments, each series once, where they are of these columns."""
    seen = []
    for run in runs:
        published = run.config.get("published") or {"x": "", "y": ""}
        if (published["x"], published["y"]) != (x, y):
            continue
        for one in published["series"]:
            if one not in seen:
                seen.append(one)
                yield published["source"], [(float(at), float(value)) for at, value in one["points"]]


def at_end(runs: Sequence[Result], y: str) -> Iterator[tuple[str, float]]:
    """Yield the published values, and their sources, of the runs' last iteration or update."""
    for x in ("iterations", "updates"):
        ends = {float(x_of(run.metrics, x).iloc[-1]) for run in runs}
        for source, points in series(runs, x, y):
            yield from ((source, value) for at, value in points if at in ends)


def row(panel: str, line: str, at: tuple[str, Any], published: float, here: float | None) -> dict[str, Any]:
    """Return a row of the table: the published value, ours, and the difference, at a place (its name, its value)."""
    return {
        **({"panel": panel} if panel else {}),
        "line": line,
        at[0]: at[1],
        "published": published,
        "here": here,
        "difference": None if here is None else here - published,
    }
