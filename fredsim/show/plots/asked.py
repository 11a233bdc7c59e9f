"""The figures that an experiment asks for, in the folder of its results."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fredsim.config.figures import FigureChoice
from fredsim.errors import FredsimError
from fredsim.runs.results import Result
from fredsim.show.plots.drawing import Drawing
from fredsim.show.plots.figure import plot
from fredsim.show.tables import write_files

__all__ = ["plot_figures"]


def plot_figures(
    results: Sequence[Result], folder: Path, figures: Sequence[FigureChoice]
) -> Iterator[tuple[Path, Drawing | FredsimError]]:
    """Write each figure and its tables into the folder; without any asked for, the error against iterations.

    Yield its path with what was drawn, or why it was not: runs may have failed, or been changed by an override. No
    error ends it, of whatever kind: the runs behind may have taken days.
    """
    title = results[0].config["name"]
    command = shlex.join(["fredsim", "plot", str(folder)])
    for figure in figures or [FigureChoice(name="error")]:
        path = folder / f"{figure.name}.png"
        try:
            drawing = plot(results, path, figure.kind, figure.options(title, command))
            write_files(path, drawing.tables, drawing.caption, command)
            yield path, drawing
        except FredsimError as error:
            yield path, error
        except Exception as error:
            yield path, FredsimError(f"{type(error).__name__}: {' '.join(str(error).split())}")
