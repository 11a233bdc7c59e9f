"""The share of potential copies that passed the gates, against iterations: pushes on the left, fetches on the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fredsim.config.figures.options import SHARES
from fredsim.runs.folder.result import Result
from fredsim.show.plots.axes import plain_numbers, scale_y, unclip
from fredsim.show.plots.combined import combined
from fredsim.show.plots.drawing import Drawing, Kind, Options, X, default_y
from fredsim.show.plots.finals import cost, counted, final_middle, note_costs, tabulated
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.hidden_lines import MOST, coinciding, merged_names, tell_apart
from fredsim.show.plots.numbers import median, number
from fredsim.show.plots.titles.answers import equals
from fredsim.show.plots.titles.curve_titles import MANY
from fredsim.show.plots.titles.subjects import subject_of
from fredsim.show.tables import Table

__all__ = ["CAPTION", "KIND", "final_row", "shares_of"]

CAPTION = "Copies that passed the gates against those that could have been made; grey: all pass."


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw each line's share of copies up to each iteration: the median of its runs, and the smallest and largest."""
    del options
    (panel,) = panels
    found = {line.label: [shares_of(line, copies) for copies in SHARES] for line in panel.lines}
    same = coinciding([{label: tuple(one.to_csv() for one in some) for label, some in found.items()}])
    lines = [line for line in panel.lines if line.label in same]
    drawn: list[dict[str, Line2D]] = [{} for _ in grid]
    for place, (axes, copies) in enumerate(zip(grid, SHARES, strict=True)):
        for line in lines:
            shares = found[line.label][place]
            (drawn[place][line.label],) = axes.plot(
                shares.index, shares.median(axis=1), color=line.colour, linestyle=line.dash, label=line.label
            )
            if shares.shape[1] > 1 and len(lines) <= MANY:
                edges = shares.min(axis=1), shares.max(axis=1)
                axes.fill_between(shares.index, *edges, color=line.colour, alpha=0.18, linewidth=0)
        axes.set_xlabel(X["iterations"])
        axes.set_ylabel(f"share of {copies} that passed")
        plain_numbers(axes, "x")
        axes.set_xlim(0, max([1, *(int(some[place].index[-1]) for some in found.values() if len(some[place]))]))
    scales = []
    for axes in grid:
        scales.append(scale_y([axes], None, from_zero=True))
        axes.set_ylim(top=1.0)
    alike = _told_apart(grid, drawn, found)
    for axes in grid:
        unclip(axes)
    rows = [final_row(line) for line in panel.lines]
    text = "Up to each iteration, the share of the copies that could have been made which passed the gates."
    scaled = filter(None, dict.fromkeys(scales))
    text = " ".join([text, *scaled, *alike, *note_costs((line.runs for line in lines), "Lines and bytes")])
    subject = subject_of([panel])
    made = {row["line"]: row["bytes"] for row in rows if row["line"] in same}
    order = sorted(made, key=lambda label: -made[label])
    return Drawing(
        text, [Table(rows)], question="What share of pushes and fetches passes the gates?",
        answer=_answer(panel, rows, subject.full), order=order, merged=merged_names(same, subject.entries),
        first="most bytes first", better="↓ fewer copies",
    )  # fmt: skip


KIND = Kind(draw, axes=2)


def _answer(panel: Panel, rows: Sequence[dict[str, Any]], names: Mapping[str, str]) -> str:
    """Return which lines of those that did not diverge made the fewest bytes, and what share of the most."""
    ended = {line.label for line in panel.lines if final_middle(line.runs, default_y(line.runs)) is not None}
    made = {row["line"]: row["bytes"] for row in rows if row["line"] in ended}
    if len(set(made.values())) < 2:
        return ""
    least, most = min(made.values()), max(made, key=made.__getitem__)
    fewest = equals([names[label] for label, size in made.items() if size == least], len(made))
    return f"Fewest bytes: {fewest}, {number(100 * least / made[most], 3)} % of those of {names[most]}"


def _told_apart(
    grid: Sequence[Axes], drawn: Sequence[Mapping[str, Line2D]], found: Mapping[str, Sequence[pd.DataFrame]]
) -> list[str]:
    """Dash lines that hide others in a panel; return the sentences that count those that are too many for that.

    `found`: the shares of each line, by its label, in both panels.
    """
    few, notes = [], []
    for place, (copies, lines) in enumerate(zip(SHARES, drawn, strict=True)):
        groups = coinciding([{label: found[label][place].to_csv() for label in lines}]).values()
        many = [group for group in groups if len(group) > MOST]
        notes += [f"{len(group)} lines have the same share of {copies}." for group in many]
        few.append({label: line for label, line in lines.items() if not any(label in group for group in many)})
    tell_apart(grid, few)
    return notes


def shares_of(line: Line, copies: str) -> pd.DataFrame:
    """Return the shares up to each iteration of those runs of a line that count, one column per run.

    There is none where no copy was possible yet.
    """

    def share(run: Result) -> pd.Series[float]:
        potential = run.metrics[f"potential_{copies}"]
        return run.metrics[copies] / potential.where(potential > 0)

    return combined(counted(line.runs), "iterations", share)[1]


def final_row(line: Line) -> dict[str, Any]:
    """Return a line's row: medians over its runs of copies, their shares, bytes and the error at the end."""
    last = [run.metrics.iloc[-1] for run in counted(line.runs)]
    row: dict[str, Any] = {"line": line.label, "runs": len(line.runs)}
    for copies in SHARES:
        row[copies] = int(median(int(end[copies]) for end in last))
        row[f"of potential {copies}"] = cost(line.runs, copies)
    row["bytes"] = int(cost(line.runs, "bytes"))
    y = default_y(line.runs)
    row[f"final {y}"] = tabulated(line.runs, y)
    return row
