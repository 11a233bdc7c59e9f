"""The runs of one line combined: the places at which they are compared, their values there, and the medians of these.

Runs with rows at the same iterations are compared by iteration. Against seconds, and if their rows stand at different
iterations or are recorded on the clock, they are compared at the same x, at which each run has the value of its last
row so far, until the first of them ends that did not diverge. In a line of several, a run that diverged has no value
from its end on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from fredsim.runs.folder.results import Result
from fredsim.show.plots.drawing import x_of
from fredsim.show.plots.finals import worst
from fredsim.show.plots.numbers import drawable

__all__ = ["Pick", "by_iteration", "by_steps", "column_of", "combined", "median_x", "middles", "note_steps", "steps"]

Pick = Callable[[Result], "pd.Series[float]"]
"""What takes a column of a run's metrics.csv, or computes one from several."""


def column_of(y: str) -> Pick:
    """Return what takes a column, where infinity stands for a NaN that was recorded: there a line has a gap.

    An empty cell says that there was nothing to measure since the row before; a line goes on to the next one.
    """

    def pick(run: Result) -> pd.Series[float]:
        values = run.metrics[y]
        lacking = values.isna()
        if not lacking.any():
            return values
        written = np.array([bool(row[y]) for row in run.cells])
        return values.mask(lacking & written, math.inf)

    return pick


def note_steps(runs: Iterable[Result]) -> str:
    """Return the sentence of a caption about lines whose runs are compared at the same x."""
    first = "the first of them ends that did not diverge" if any(run.has_diverged for run in runs) else ""
    end = first or "the first of them does"
    return f"A run's value is that of its last row so far; a line of several ends where {end}."


def combined(runs: Sequence[Result], x: str, pick: Pick) -> tuple[pd.Series[float], pd.DataFrame]:
    """Return x, and what is picked of the runs there, one column per run: by iteration with median x, or by steps.

    Values that are not finite, or too large, are NaN: they cannot be drawn.
    """
    if by_steps(runs, x):
        at, values = steps(runs, x, pick)
    else:
        values = by_iteration(runs, pick).dropna(how="all")
        at = median_x(runs, x)[values.index]
    return at, values.where(drawable(values))


def middles(runs: Sequence[Result], y: str, values: pd.DataFrame) -> pd.Series[float]:
    """Return the medians of `values`, which have a column per run; NaN where there is none.

    From where a run diverged, it counts as the worst value there can be: a median of those that are left would seem the
    better, the more of them diverge.
    """
    filled, least = values.copy(), worst(runs, y)
    for number, run in enumerate(runs):
        if run.has_diverged and least is not None:
            known = filled[number].notna()
            filled.loc[~known[::-1].cummax()[::-1], number] = least
    middle = filled.median(axis=1)
    return middle.where(np.isfinite(middle))


def by_iteration(runs: Sequence[Result], pick: Pick) -> pd.DataFrame:
    """Return what is picked of each run, one column per run, indexed by iteration.

    There are the rows of the runs that did not diverge: where one diverged between these, it alone has a value.
    """
    picked = []
    for run in runs:
        values = pick(run).set_axis(run.metrics["iteration"])
        if len(runs) > 1 and run.has_diverged:
            values = values[values.index < values.index[-1]]
        # a run that ends by the clock may have a last row without a further iteration
        picked.append(values[~values.index.duplicated()])
    rows = _lasting(runs)[0].metrics["iteration"].drop_duplicates()
    return pd.concat(picked, axis=1, keys=range(len(runs))).reindex(rows)


def median_x(runs: Sequence[Result], x: str) -> pd.Series[float]:
    """Return the median of x in the rows of `by_iteration`, of runs that are in all of them, so that it never falls."""
    return by_iteration(_lasting(runs), lambda run: x_of(run.metrics, x)).median(axis=1)


def _lasting(runs: Sequence[Result]) -> Sequence[Result]:
    """Return the runs that did not diverge; if all did, the one that came furthest."""
    furthest = max(runs, key=lambda run: int(run.metrics["iteration"].iloc[-1]))
    return [run for run in runs if not run.has_diverged] or [furthest]


def by_steps(runs: Sequence[Result], x: str) -> bool:
    """Return whether runs are compared at the same x, as rows of one iteration may be far apart, or not be there."""
    return x == "seconds" or any(run.by_the_clock for run in runs) or not _same_rows(runs)


def _same_rows(runs: Sequence[Result]) -> bool:
    """Return whether runs have rows at the same iterations: those that diverged up to there, all others to the end."""
    rows = [run.metrics["iteration"].to_numpy()[: -1 if run.has_diverged else None] for run in runs]
    longest = max(rows, key=len)
    lengths = {len(own) for run, own in zip(runs, rows, strict=True) if not run.has_diverged}
    return len(lengths) <= 1 and all(np.array_equal(own, longest[: len(own)]) for own in rows)


def steps(runs: Sequence[Result], x: str, pick: Pick) -> tuple[pd.Series[float], pd.DataFrame]:
    """Return every x at which a run has a row, and each run's last value so far, one column per run.

    They end where the first run ends that did not diverge.
    """
    columns, stops, ends = [], [], []
    for run in runs:
        at, values = x_of(run.metrics, x).to_numpy(float), pick(run)
        known = np.flatnonzero(values.notna())
        last = int(known[-1]) if len(known) else 0
        diverged = len(runs) > 1 and run.has_diverged
        # the first x at which it has no value any more
        stops.append(at[min(last + 1, len(at) - 1)] if diverged else np.nextafter(at[last], math.inf))
        ends += [at[last]] if len(known) and not run.has_diverged else []
        found = pd.Series(values.to_numpy(float)[known], at[known])
        columns.append(found[~found.index.duplicated(keep="last")])
    grid = pd.Index(sorted(set().union(*(values.index for values in columns))), dtype=float)
    grid = grid[grid <= min(ends, default=math.inf)]
    shown = {
        number: values.reindex(grid, method="ffill").where(grid < stop)
        for number, (values, stop) in enumerate(zip(columns, stops, strict=True))
        if len(values)
    }
    frame = pd.DataFrame(shown, index=grid, columns=range(len(columns)), dtype=float)
    return pd.Series(grid, index=grid), frame
