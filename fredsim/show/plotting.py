"""Draws figures for Python: the options are the keys of a figure in an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fredsim.config.document import problems_at
from fredsim.config.figures.choice import FigureChoice
from fredsim.config.plain_data import checked
from fredsim.data.kept import own_data_read_anew
from fredsim.errors import ConfigError, OutputError, brief, nearest
from fredsim.hyper import explain, fields_of
from fredsim.runs.folder.result import Result
from fredsim.show.distinct import distinct
from fredsim.show.lacking import note_lacking

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure_of"]

#: The keys of a figure that are options here: its files have no name, and no table is written.
KEYS = tuple(key for key in fields_of(FigureChoice, ()) if key not in ("name", "kind", "latex"))


@brief
@own_data_read_anew
def figure_of(
    results: Sequence[Result], kind: str, options: Mapping[str, Any], root: Path | None, folder: Path
) -> Figure:
    """Return a figure of the runs in a folder; with the option `path`, also write it. Raises ConfigError, OutputError.

    `root` is where data files are kept.
    """
    from fredsim.show import plots

    if not results:
        raise OutputError("there is nothing to draw: no run has ended, or all failed; `failures` says why")

    keys = {"from" if key == "from_" else key: value for key, value in options.items() if key != "path"}
    for key in keys:
        if key not in KEYS:
            known = ", ".join((*KEYS, "path", "data_root"))
            raise ConfigError(f"{key}: plot has no such option{nearest(key, [*KEYS, 'path'])} (known: {known})")
    try:
        choice = FigureChoice.model_validate({"name": "figure", "kind": kind, **checked(keys, (), "plot")})
    except ValidationError as error:
        raise problems_at(explain(error, FigureChoice), lambda _: "plot") from None
    runs, drawn = distinct(list(results)), replace(choice.options(), data_root=root)
    note_lacking([folder])
    figure, _ = plots.draw(runs, kind, drawn)
    if (path := options.get("path")) is not None:
        plots.plot(runs, Path(path), kind, drawn)
    return figure
