"""Who watches runs. No bit depends on them.

The classes here show nothing; fredsim.show.progress has a live table and plain lines, fredsim.runs.worker a relay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from fredsim.simulation.recorder import Row

__all__ = ["Observer", "Show"]


class Observer:
    """Watches one run; each method does nothing until a class that shows or passes on what happens overrides it."""

    def compiling(self) -> None:
        """Take note that a kernel is being compiled, which happens once on a machine."""

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Take note that a run begins; one of its two lengths is known."""

    def advance(self, iteration: int, timestamp: int) -> None:
        """Take note of how far the run is."""

    def row(self, row: Row) -> None:
        """Take note of a row of metrics.csv."""

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Take note that the run has ended and its files are written."""


class Show:
    """Watches the runs of a sweep, several of them at once, or a single one; used in a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""

    def sweep(self, runs: int, ended: int) -> None:
        """Take note that a sweep of so many runs begins, so many of which have ended before."""

    def run(self) -> Observer:
        """Return who watches the next run."""
        return Observer()

    def failed(self, label: str, error: str) -> None:
        """Take note that a run has failed."""

    def note(self, text: str) -> None:
        """Take note of what has happened to a sweep."""
