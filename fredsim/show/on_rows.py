"""Calls a user's function with each row of metrics.csv, beside whatever shows the progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

from fredsim.plugins.modules import folder_kept
from fredsim.runs.many.runner import Stop
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.simulation.record.recorder import METRICS, Row

__all__ = ["OnRow", "RowMonitor"]

OnRow = Callable[[dict[str, Any]], object]


class RowMonitor:
    """Passes all callbacks on to another monitor, and rows to a function; what that raises stops the runs."""

    def __init__(self, monitor: Monitor, on_row: OnRow, stop: Stop) -> None:
        self._monitor, self._on_row, self._stop = monitor, on_row, stop
        self.error: BaseException | None = None  # the first that the function has raised

    def __enter__(self) -> Self:
        self._monitor.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._monitor.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    def observer(self) -> Observer:
        """Return the callbacks of the next run."""
        return cast(Observer, _RowObserver(self, self._monitor.observer()))

    def row(self, label: str, row: Row) -> None:
        """Call the function, unless it has raised before."""
        if self.error is None:
            try:
                with folder_kept():
                    self._on_row({"run": label, **{name: getattr(row, name) for name in METRICS}, **row.more})
            except BaseException as error:
                self.error = error
                self._stop.ask()


class _RowObserver:
    def __init__(self, monitor: RowMonitor, observer: Observer) -> None:
        self._monitor, self._observer, self._label = monitor, observer, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._observer, name)

    def begin(self, label: str, *lengths: Any) -> None:
        self._label = label
        self._observer.begin(label, *lengths)

    def row(self, row: Row) -> None:
        self._observer.row(row)
        self._monitor.row(self._label, row)
