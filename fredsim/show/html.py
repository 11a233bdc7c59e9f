"""How a notebook shows results: a small table and the curves, as HTML without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fredsim.config.figures.options import LOG_FROM
from fredsim.runs.folder.result import Result
from fredsim.show.best import best_of, common_measure
from fredsim.show.colours import PALETTE
from fredsim.show.escaping import escape_html
from fredsim.show.plots.groups import labels
from fredsim.show.plots.thinning import outlined
from fredsim.show.tables import short

__all__ = ["html_of"]

MOST_ROWS, MOST_CURVES = 20, 6
PARTS = 200  # of a long curve, of which each has its smallest and its largest value
WIDTH, HEIGHT = 420, 120  # of the curves, in pixels


def html_of(results: Sequence[Result], folder: Path, failures: Sequence[tuple[str, str]] = ()) -> str:
    """Return a table of runs, those with the best final error in bold, and the curves of the first few."""
    names = labels(results) if results else []
    y, best = common_measure(results), best_of(results)
    finals = [run.outcome.get(y) for run in results]
    head = ["", "run", "status", "iterations", y.replace("_", " "), "digest"]
    rows = []
    for number, (name, run, final) in enumerate(zip(names, results, finals, strict=True)):
        cells = [name, run.ending, f"{run.summary['iterations']:,}", short(final), run.summary["digest"][:12]]
        key = f'<span style="color:{PALETTE[number]}">●</span>' if number < min(MOST_CURVES, len(PALETTE)) else ""
        shown = (f"<b>{escape_html(cell)}</b>" if number in best else escape_html(cell) for cell in cells)
        rows.append(f"<tr><td>{key}</td>{''.join(f'<td>{cell}</td>' for cell in shown)}</tr>")
    more = f"<p>… and {len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    failed = "".join(f"<p>failed: {escape_html(name)}: {escape_html(error)}</p>" for name, error in failures[:3])
    table = f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{''.join(rows[:MOST_ROWS])}</table>"
    return f"<div>{table}{more}{failed}{_curves(results[:MOST_CURVES], y)}<p>{escape_html(str(folder))}</p></div>"


def _curves(results: Sequence[Result], y: str) -> str:
    """Return an SVG of y against iterations, logarithmic if the values span a factor of LOG_FROM."""
    lines = list[list[tuple[float, float]]]()
    for run in results:
        if y not in run.metrics:  # a gap, where not all have one
            lines.append([])
            continue
        rows = run.metrics[["iteration", y]].dropna()
        rows = rows[rows[y].abs() < math.inf]
        rows = rows.iloc[outlined([rows[y].to_numpy()], PARTS)]
        lines.append(list(zip(rows["iteration"].tolist(), rows[y].tolist(), strict=True)))
    values = [value for line in lines for _, value in line]
    end = max((x for line in lines for x, _ in line), default=0)
    if not values or not end:
        return ""
    low, high = min(values), max(values)
    log = low > 0 and high / low > LOG_FROM
    bottom, top = (math.log(low), math.log(high)) if log else (0.0 if low >= 0 else low, high)

    def point(x: float, value: float) -> str:
        share = ((math.log(value) if log else value) - bottom) / ((top - bottom) or 1)
        return f"{50 + x / end * (WIDTH - 60):.1f},{HEIGHT - 20 - share * (HEIGHT - 30):.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(point(*one) for one in line)}"/>'
        for colour, line in zip(PALETTE, lines, strict=False)
    )
    text = '<text fill="currentColor" font-size="10" text-anchor="{}" x="{}" y="{}">{}</text>'
    ends = (("end", 46, 14, short(high)), ("end", 46, HEIGHT - 18, short(low if log else bottom)),
            ("start", 50, HEIGHT - 6, "0"), ("end", WIDTH - 10, HEIGHT - 6, f"{end:,} iterations"))  # fmt: skip
    label = f"{y.replace('_', ' ')}{', logarithmic' if log else ''}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img"><title>{label}</title>{drawn}'
        f"{''.join(text.format(*one) for one in ends)}</svg><p>{label} against iterations</p>"
    )
