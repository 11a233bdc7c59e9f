"""The sections of a report that have figures: each with its caption and the table that goes with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fredsim.show.distinct import alike
from fredsim.show.plots.combined import by_steps, note_steps
from fredsim.show.plots.drawing import Options, available_y, default_y, marker_notes
from fredsim.show.plots.finals import note_diverged
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.kinds import copies, curves, probe, staleness
from fredsim.show.report import figures
from fredsim.show.tables import Table

__all__ = ["Section", "sections"]


@dataclass(frozen=True)
class Section:
    """Figures with title, caption and table; `key` is the HTML id; `x`, `y`: choices of an axis, default first."""

    key: str
    title: str
    figures: list[figures.Figure]
    caption: str
    table: Table
    x: Sequence[str] = ()
    y: Sequence[str] = ()
    linear: bool = False
    """Whether the first y is near its largest value where it is good, so that a logarithmic axis shows little."""


def sections(panels: Sequence[Panel]) -> Iterator[Section]:
    """Yield the sections: curves and staleness; copies if a gate dropped one; and probes if there are any."""
    yield _curves(panels)
    rows = [panel.row(staleness.final_row(line, staleness.counts_of(line))) for panel in panels for line in panel.lines]
    yield Section("staleness", "Staleness", figures.staleness(panels), staleness.CAPTION, Table(rows))

    if gated := figures.panels_with_drops(panels):
        rows = [panel.row(copies.final_row(line)) for panel in gated for line in panel.lines]
        yield Section("copies", "Bandwidth", figures.copies(gated), copies.CAPTION, Table(rows))

    if probed := figures.panels_with_probes(panels):
        rows = [panel.row(probe.rank_row(line, probe.probes_of(line))) for panel in probed for line in panel.lines]
        caption = (
            "The true B-staleness ‖g(θ client) − g(θ server)‖ of arriving gradients, on their minibatches: medians and "
            "quartiles of parts of the probes. The table has how well τ and other measures rank it (Spearman)."
        )
        yield Section("probe", "Probe", figures.probe(probed), caption, Table(rows))


def _curves(panels: Sequence[Panel]) -> Section:
    lines = [(panel, line) for panel in panels for line in panel.lines]
    runs = [run for _, line in lines for run in line.runs]
    y = sorted(available_y(runs), key=lambda one: one != default_y(runs))
    caption = []
    if len(runs) > len(lines):
        caption.append("Lines: medians of runs; bands: their smallest and largest.")
        several = [line.runs for _, line in lines if len(line.runs) > 1]
        caption += note_diverged(several, *y)
        text = note_steps(run for some in several for run in some)
        if any(by_steps(some, "iterations") for some in several):
            caption.append(text)
        elif "seconds" in figures.axes_of(runs):
            caption.append(f"Against seconds: {text[0].lower()}{text[1:]}")
    caption += [f"{text[0].upper()}{text[1:]}." for _, line in lines if (text := alike(line.runs))]
    published = (run.config.get("published") for run in runs)
    caption += marker_notes(runs, dict.fromkeys(one["source"] for one in published if one), figures.PLACE)
    rows = [curves.final_row(panel, line, default_y(runs), Options()) for panel, line in lines]
    x = sorted(figures.axes_of(runs), key=lambda one: one != curves.default_x(runs))
    linear = any(run.larger_is_better(y[0]) for run in runs)
    return Section("curves", "Curves", figures.curves(panels), " ".join(caption), Table(rows), x, y, linear)
