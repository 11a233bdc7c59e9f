"""What `fredsim calibrate` prints and draws."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fredsim.config.document import dump_yaml
from fredsim.errors import ConfigError
from fredsim.runs.folder.results import Result
from fredsim.runs.live.calibrate import calibrated, measured, predicted
from fredsim.show.console import print_table
from fredsim.show.escaping import escape_title
from fredsim.show.tables import Table
from fredsim.show.terminal import say, say_lines
from fredsim.system.given import real_path

__all__ = ["print_calibrated"]

#: The figures that compare the measured run with the predicted one: their kinds, and their x axes.
FIGURES = {"error": ("curves", "seconds"), "staleness": ("staleness", None)}


def print_calibrated(folder: Path, others: Sequence[Path], root: Path | None, out: Path | None) -> None:
    """Print the clock fitted to a live run, and tables that compare its predictions of other runs with measurements.

    The predicted runs are kept in the folder `out`, with figures of both; None: only the tables are printed. Raises
    ConfigError if two of them would be kept in the same folder.
    """
    names = [real_path(other).name for other in others]
    for name, other in zip(names, others, strict=True):
        first = others[names.index(name)]
        if out is not None and first != other:
            raise ConfigError(f"--predict: {first} and {other} would both be kept in {out / name}; rename a folder")
    dispatcher, records = calibrated(Result(folder)), [Result(other) for other in others]
    values = [measured(result) for result in records]
    say_lines(dump_yaml({"dispatcher": dispatcher}))
    with tempfile.TemporaryDirectory() as scratch:
        for number, (other, result, recorded) in enumerate(zip(others, records, values, strict=True)):
            place = Path(scratch, str(number)) if out is None else out / names[number]
            simulated = predicted(result, dispatcher, place, root)
            predictions = measured(simulated)
            rows = [
                {
                    "": name,
                    "measured": value,
                    "predicted": now,
                    "ratio": None if now is None or not value else now / value,
                }
                for name, value in recorded.items()
                for now in [predictions[name]]
            ]
            print_table(Table(rows, title=str(other)).printed())
            if out is not None:
                _draw(result, simulated)


def _draw(result: Result, simulated: Result) -> None:
    from fredsim.show import plots

    for name, (kind, x) in FIGURES.items():
        path = simulated.folder / f"{name}.png"
        options = plots.Options(x=x, title=escape_title(str(result.folder)))
        plots.plot([result, simulated], path, kind, options, ["measured", "predicted"])
        say(f"figure:  {path}")
