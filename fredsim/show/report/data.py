"""What the scripts of a report need, as plain data: lines and colours, figures, runs with their curves, texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from fredsim.config.document import Document
from fredsim.errors import visible
from fredsim.runs.folder.results import Result
from fredsim.show.colours import DARK_PALETTE, DARK_SEQUENCE, PALETTE, SEQUENCE
from fredsim.show.escaping import LINES
from fredsim.show.plots.drawing import available_y
from fredsim.show.plots.groups import Panel, labels
from fredsim.show.report import figures
from fredsim.show.report.compression import Pool
from fredsim.show.report.run_table import run_table
from fredsim.show.report.sections import Section
from fredsim.show.report.winner import winners
from fredsim.system.files import read_bytes

__all__ = ["Given", "data_of", "lines_of"]


@dataclass(frozen=True)
class Given:
    """What was read: runs, failures (name and error), headings, sweeps; and panels. `several`: folders were named."""

    results: Sequence[Result]
    failures: Sequence[tuple[str, str]]
    headings: Sequence[str]
    sweeps: Sequence[Document]
    panels: Sequence[Panel]
    several: bool


def data_of(given: Given, found: Sequence[Section], lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return all that the scripts need, as plain data; a column of numbers by its place among `columns`."""
    pool = Pool()
    drawn = {
        f"{section.key}-{n}": figure | {"data": [_pooled(trace, pool) for trace in figure["data"]], "panel": None}
        for section in found
        for n, figure in enumerate(section.figures)
    }
    axes, ys = figures.axes_of(given.results), available_y(given.results)
    of_run = {
        id(run): {"panel": n, "line": visible(line.label)}
        for n, panel in enumerate(given.panels)
        for line in panel.lines
        for run in line.runs
    }
    texts = [("the sweep, with its overrides", sweep.text) for sweep in given.sweeps]
    for run, label in zip(given.results, labels(given.results), strict=True):
        text = read_bytes(run.folder / "config.yaml").decode()  # was read as an experiment before (Result.check_files)
        texts.append((label, StringIO(text, newline=None).read()))
    return {
        "lines": lines,
        "sequences": [SEQUENCE, DARK_SEQUENCE],
        "won": [{"panel": one.panel, "line": visible(one.line.label)} for one in winners(given.panels)],
        "larger": [y for y in ys if any(run.larger_is_better(y) for run in given.results)],
        "palettes": [PALETTE, DARK_PALETTE],
        "figures": drawn,
        "table": run_table(given.results, given.failures, given.sweeps, several=given.several),
        "panels": [visible(panel.title) for panel in given.panels],
        "runs": [of_run[id(run)] | _pooled(figures.run_curve(run, axes, ys), pool) for run in given.results],
        "texts": [[visible(title), visible(text, LINES)] for title, text in texts],
        "columns": pool.columns,
    }


def lines_of(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return the label, the colours (on a light and on a dark ground) and the dash of each line."""
    names = list(dict.fromkeys(visible(line.label) for panel in panels for line in panel.lines))
    return [
        {
            "label": name,
            "colours": [PALETTE[n % len(PALETTE)], DARK_PALETTE[n % len(DARK_PALETTE)]],
            "dash": figures.DASHES[n // len(PALETTE) % len(figures.DASHES)],
        }
        for n, name in enumerate(names)
    ]


def _pooled(trace: dict[str, Any], pool: Pool) -> dict[str, Any]:
    """Return a trace, or the curve of a run, with the places of its columns."""
    return trace | {"x": pool.places(trace["x"]), "y": pool.places(trace["y"])}
