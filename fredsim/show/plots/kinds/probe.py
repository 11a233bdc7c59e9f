"""The true B-staleness (fredsim.simulation.paths.probe): on the left during training, on the right against staleness τ.

The table has its rank correlation (Spearman's) with each proxy that a strategy may use; a perfect proxy has 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fredsim.show.plots.axes import plain_numbers, scale_y, unclip
from fredsim.show.plots.drawing import Drawing, Kind, Options, X
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.answers import leaders
from fredsim.show.plots.titles.fair import field_of
from fredsim.show.plots.titles.subjects import subject_of
from fredsim.show.tables import Table
from fredsim.simulation.paths.probe import OF_TENSORS, of_tensor

__all__ = ["B_STALENESS", "KIND", "probes_of", "quartiles", "rank_row"]

PARTS = {"iteration": 20, "staleness": 10}  # sorted by these columns, probes are split into so many equal parts
BANDS = 3  # the most bands that are drawn; more would hide each other
B_STALENESS = "B-staleness, ‖stale − fresh gradient‖"  # the label of its axis
OF_NORM = "of the gradient's norm"
NO_PROXIES = {"iteration", "timestamp", "client", "b_staleness", "gradient_norm"}
OF_TENSORS_BEGIN = tuple(of_tensor(column, "") for column in OF_TENSORS)


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw each line's medians and quartiles over the probes of all its runs."""
    rows = []
    for line in panels[0].lines:
        probes = probes_of(line)
        for axes, column in zip(grid, PARTS if len(probes) else (), strict=False):
            x, low, middle, high = quartiles(probes, column)
            axes.plot(x, middle, color=line.colour, linestyle=line.dash, marker="o", markersize=2.5, label=line.label)
            if len(panels[0].lines) <= BANDS:
                axes.fill_between(x, low, high, color=line.colour, alpha=0.18, linewidth=0)
        rows.append(rank_row(line, probes))
    scales = []
    for axes, name in zip(grid, (X["iterations"], "staleness τ (updates)"), strict=True):
        axes.set_xlabel(name)
        axes.set_xlim(left=0)
        plain_numbers(axes, "x")
        scales.append(scale_y([axes], bool(options.log), from_zero=True))
        unclip(axes)
    grid[0].set_ylabel(B_STALENESS)
    caption = (
        "B-staleness ‖g(θ client) − g(θ server)‖ of arriving gradients, on their minibatches (Odena 2016, eq 3): "
        f"medians of {PARTS['iteration']} parts of the training on the left, of {PARTS['staleness']} parts of the "
        "probes by τ on the right."
    )
    banded = " Bands: quartiles." if len(panels[0].lines) <= BANDS else ""
    text = " ".join([f"{caption}{banded}", *filter(None, dict.fromkeys(scales))])
    subject = subject_of(panels)
    question = f"With which {subject.noun} are old gradients the closest to fresh ones?"
    question = question if len(rows) > 1 else "How far is an old gradient from a fresh one?"
    return Drawing(
        text,
        [Table(rows)],
        question=question,
        answer=_answer(panels[0].lines, rows, subject.full),
        better="↓ closer to fresh",
    )


KIND = Kind(draw, axes=2, shows="probe")


def _answer(lines: Sequence[Line], rows: Sequence[dict[str, Any]], names: Mapping[str, str]) -> str:
    """Return which line's gradients are the closest to fresh ones, by what is drawn; of one line also its share."""
    medians = {line.label: row["b_staleness"] for line, row in zip(lines, rows, strict=True) if row["probes"]}
    if len(rows) > 1:
        fields = [field_of({line.label: line.runs for line in lines if line.label in medians}, None)]
        return leaders([medians], names, start="Closest in the median", fields=fields)
    (row,) = rows
    share = f"{number(100 * row[OF_NORM], 3)} % of the gradient's norm"
    return f"By {number(row['b_staleness'], 3)}, {share}, in the median" if medians else ""


def probes_of(line: Line) -> pd.DataFrame:
    """Return the probes of all runs of a line."""
    return pd.concat([run.probe for run in line.runs])


def quartiles(probes: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Sort probes by `column`, split them into up to PARTS[column] parts, and return an array (4, parts).

    Probes with the same value are in the same part. The array's rows are the medians of the column, then the first
    quartiles, medians and third quartiles of the B-staleness.
    """
    ordered = probes.sort_values([column, "iteration"], kind="stable")
    at, values = (ordered[name].to_numpy() for name in (column, "b_staleness"))
    parts = np.array_split(at, min(PARTS[column], len(at)))
    begins = np.unique(np.searchsorted(at, [part[0] for part in parts]))
    where = np.split(np.arange(len(at)), begins[1:])
    x = np.array([np.median(at[part]) for part in where])
    known = [values[part][~np.isnan(values[part])] for part in where]
    with np.errstate(invalid="ignore"):  # between two infinities
        found = [np.percentile(some, [25, 50, 75]) if len(some) else np.full(3, np.nan) for some in known]
    return np.vstack([x, np.array(found).T])


def rank_row(line: Line, probes: pd.DataFrame) -> dict[str, Any]:
    """Return a line's row: medians, and each proxy's rank correlation with the B-staleness."""
    true = probes["b_staleness"]
    row: dict[str, Any] = {
        "line": line.label,
        "runs": len(line.runs),
        "probes": len(probes),
        "b_staleness": float(true.median()),
        OF_NORM: float((true / probes["gradient_norm"]).median()),
    }
    for proxy in probes.columns:
        if proxy not in NO_PROXIES and not proxy.startswith(OF_TENSORS_BEGIN):
            varies = probes[proxy].nunique() > 1 and true.nunique() > 1
            row[f"rank by {proxy}"] = float(true.rank().corr(probes[proxy].rank())) if varies else None
    return row
