"""Callbacks that follow runs; no bit depends on them.

Those here do nothing. fredsim.show.progress shows a live table or plain lines; fredsim.runs.worker has a relay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from fredsim.simulation.recorder import Row

__all__ = ["Monitor", "Observer"]


class Observer:
    """Callbacks of one run, to be overridden."""

    def compiling(self) -> None:
        """Hear that a kernel will be compiled now, as happens once on a machine."""

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        """Hear that the run begins; of its three lengths, the last in simulated seconds, one is not None."""

    def advance(self, iteration: int, timestamp: int, time: float) -> None:
        """Hear how many events have happened, the server's timestamp, and the time in what rows count it in."""

    def row(self, row: Row) -> None:
        """Hear of a row of metrics.csv."""

    def note(self, text: str) -> None:
        """Hear of something that is worth a line."""

    def checkpoint(self, iteration: int) -> None:
        """Hear that a checkpoint is written."""

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Hear that the run has ended, with all its files."""


class Monitor:
    """Callbacks of a sweep, whose runs may overlap, or of a single run; used in a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""

    def sweep(self, runs: int, ended: int) -> None:
        """Hear that a sweep begins: how many runs it has, and how many ended before."""

    def observer(self) -> Observer:
        """Return the callbacks of the next run."""
        return Observer()

    def failed(self, label: str, error: str) -> None:
        """Hear that a run has failed."""

    def note(self, text: str) -> None:
        """Hear of something that is worth a line."""
