"""Says which runs of the folders that a command was given are not among its results, or not whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from fredsim.config.document import Document, read_document
from fredsim.config.sweep.outline import count_runs
from fredsim.errors import ConfigError, OutputError, option
from fredsim.runs.folder.result import Result
from fredsim.runs.folder.sweep_tables import recorded_rows
from fredsim.show.terminal import say

__all__ = ["did_not_end", "lacking", "note_lacking", "unended"]


def lacking(folder: Path, done: str) -> Iterator[str]:
    """Yield which runs of a sweep failed or did not end, which is why they are not `done`, or how far a run came.

    Nothing is said of runs that sweep.yaml does not tell, where it is gone or cannot be read.
    """
    if not os.path.lexists(folder / "runs.csv"):
        run = Result(folder)
        if run.has_ended and run.summary["status"] == "interrupted":
            yield f"was interrupted, and is {done} up to iteration {run.summary['iterations']:,}"
        return
    rows = recorded_rows(folder)
    if failed := [cells["run"] for cells in rows if cells.get("status") == "failed"]:
        yield f"runs that failed ({len(failed):,}, such as {failed[0]}) are not {done}; runs.csv says why"
    left = 0
    with suppress(ConfigError, OutputError):
        left = unended(read_document(folder / "sweep.yaml"), len(rows))
    if left:
        yield did_not_end(left, done)


def unended(sweep: Document, ended: int) -> int:
    """Return how many runs of a sweep did not end; `ended` of them, which was checked, did, or failed."""
    return count_runs(sweep) - ended


def did_not_end(count: int, done: str) -> str:
    """Return what to note of so many runs of a sweep that did not end, and so are not `done`."""
    return f"runs of the sweep that did not end ({count:,}) are not {done}; {option('resume', 'True')} does them"


def note_lacking(folders: Iterable[Path], done: str = "shown") -> None:
    """Print what each of these folders lacks, after it was read (`lacking`)."""
    for folder in dict.fromkeys(folders):
        for text in lacking(folder, done):
            say(f"note: {folder}: {text}", err=True)
