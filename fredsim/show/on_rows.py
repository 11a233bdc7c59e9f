"""Calls a user's function with each row of metrics.csv, beside whatever shows the progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from fredsim.runs.many.runner import Stop
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.simulation.record.recorder import METRICS, Row

__all__ = ["OnRow", "RowMonitor"]

OnRow = Callable[[dict[str, Any]], object]


class RowMonitor(Monitor):
    """Passes all callbacks on to another monitor, and rows to a function; what that raises stops the runs."""

    def __init__(self, monitor: Monitor, on_row: OnRow, stop: Stop) -> None:
        self._monitor, self._on_row, self._stop = monitor, on_row, stop
        self.error: BaseException | None = None  # the first that the function has raised

    def __enter__(self) -> Self:
        self._monitor.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the terminal."""
        self._monitor.__exit__(*error)

    def sweep(self, runs: int, ended: int) -> None:
        """Pass it on."""
        self._monitor.sweep(runs, ended)

    def observer(self) -> Observer:
        """Return the callbacks of the next run."""
        return _RowObserver(self, self._monitor.observer())

    def failed(self, label: str, error: str) -> None:
        """Pass it on."""
        self._monitor.failed(label, error)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._monitor.note(text)

    def row(self, label: str, row: Row) -> None:
        """Call the function, unless it has raised before."""
        if self.error is None:
            try:
                self._on_row({"run": label, **{name: getattr(row, name) for name in METRICS}, **row.more})
            except BaseException as error:
                self.error = error
                self._stop.ask()


class _RowObserver(Observer):
    def __init__(self, monitor: RowMonitor, observer: Observer) -> None:
        self._monitor, self._observer, self._label = monitor, observer, ""

    def compiling(self) -> None:
        self._observer.compiling()

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        self._label = label
        self._observer.begin(label, iterations, updates, seconds)

    def advance(self, iteration: int, timestamp: int, time: float) -> None:
        self._observer.advance(iteration, timestamp, time)

    def row(self, row: Row) -> None:
        self._observer.row(row)
        self._monitor.row(self._label, row)

    def note(self, text: str) -> None:
        self._observer.note(text)

    def checkpoint(self, iteration: int) -> None:
        self._observer.checkpoint(iteration)

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        self._observer.end(label, summary)
