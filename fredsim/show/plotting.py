"""Draws figures for Python: the options are the keys of a figure in an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fredsim.config.document import Document, problems_at
from fredsim.config.figures.choice import FigureChoice
from fredsim.errors import brief
from fredsim.hyper import explain
from fredsim.runs.folder.result import Result
from fredsim.show.distinct import distinct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure_of"]


@brief
def figure_of(results: Sequence[Result], kind: str, options: Mapping[str, Any]) -> Figure:
    """Return a figure of runs; with the option `path`, also write it. Raises ConfigError, OutputError."""
    from fredsim.show import plots

    keys = {key.rstrip("_"): value for key, value in options.items() if key != "path"}  # from_
    try:
        choice = FigureChoice.model_validate({"name": "figure", "kind": kind, **keys})
    except ValidationError as error:
        raise problems_at(explain(error, FigureChoice), Document({}).place) from None
    runs = distinct(list(results))
    figure, _ = plots.draw(runs, kind, choice.options())
    if (path := options.get("path")) is not None:
        plots.plot(runs, Path(path), kind, choice.options())
    return figure
