"""Callbacks that report the progress of runs; no bit depends on them.

The classes here do nothing. fredsim.show.progress has those that show a live table or plain lines;
fredsim.runs.processes.worker has one that relays callbacks to another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from fredsim.simulation.record.recorder import Row

__all__ = ["Monitor", "Observer", "PassingEnd"]


class Observer:
    """Callbacks of one run, to be overridden."""

    def compiling(self) -> None:
        """Report that a kernel will be compiled now, which happens once per machine."""

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        """Report that the run begins; one of its three lengths is not None; `seconds` are simulated ones."""

    def advance(self, iteration: int, timestamp: int, time: float) -> None:
        """Report the number of events so far, the server's timestamp, and the time as in the rows' column `time`."""

    def row(self, row: Row) -> None:
        """Report a row of metrics.csv."""

    def note(self, text: str) -> None:
        """Report something that the user should be told."""

    def checkpoint(self, iteration: int) -> None:
        """Report that a checkpoint was written."""

    def memory(self, peak: int, buffers: int, more: int) -> None:
        """Report, after the last event, the most bytes of memory that the process of the run has had.

        `buffers` of these are the engine's buffers (fredsim.compute.engines.Engine.buffer_bytes), and `more` what
        clients' local steps, and the norm of the gradient, take besides.
        """

    def end(self, label: str, summary: Mapping[str, Any], ending: str) -> None:
        """Report that the run has ended, and that all its files are written; `ending`: how, for people."""


class PassingEnd:
    """Passes all callbacks on, and keeps the summary of the run when it has ended."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self.summary = observer, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._observer, name)

    def end(self, label: str, summary: Mapping[str, Any], ending: str) -> None:
        """Keep the summary."""
        self.summary.update(summary)
        self._observer.end(label, summary, ending)


class Monitor:
    """Callbacks of a sweep, whose runs may overlap, or of a single run; used in a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the terminal."""

    def sweep(self, runs: int, ended: int) -> None:
        """Report that a sweep of `runs` runs begins, of which `ended` had already ended before."""

    def observer(self) -> Observer:
        """Return the callbacks of the next run."""
        return Observer()

    def failed(self, label: str, error: str) -> None:
        """Report that a run has failed."""

    def note(self, text: str) -> None:
        """Report something that the user should be told."""
