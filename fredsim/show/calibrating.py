"""What `fredsim calibrate` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fredsim.config.document import dump_yaml
from fredsim.runs.calibrate import calibrated, measured, predicted
from fredsim.runs.results import Result
from fredsim.show.printing import print_table
from fredsim.show.tables import Table

__all__ = ["print_calibrated"]


def print_calibrated(folder: Path, others: Sequence[Path], root: Path | None) -> None:
    """Print the clock of a live run, and what it predicts of some, beside what was measured."""
    dispatcher = calibrated(Result(folder))
    typer.echo(dump_yaml({"dispatcher": dispatcher}), nl=False)
    for other in others:
        result = Result(other)
        was, is_ = measured(result), predicted(result, dispatcher, root)
        rows = [
            {"": name, "measured": value, "predicted": now, "ratio": now / value if now and value else None}
            for name, value in was.items()
            for now in [is_[name]]
        ]
        print_table(Table(rows, title=str(other)).printed())
