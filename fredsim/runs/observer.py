"""Who watches runs: a live table, plain lines, or nobody. Nothing that they do changes a bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fredsim.simulation.recorder import Row

__all__ = ["Observer", "Show", "Silent", "SilentShow"]


class Observer(Protocol):
    """Watches one run."""

    def compiling(self) -> None:
        """Take note that a kernel is being compiled, which happens once on a machine."""
        ...

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Take note that a run begins; one of its two lengths is known."""
        ...

    def advance(self, iteration: int, timestamp: int) -> None:
        """Take note of how far the run is."""
        ...

    def row(self, row: Row) -> None:
        """Take note of a row."""
        ...

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Take note that the run has ended and its files are written."""
        ...


class Silent:
    """Watches nothing."""

    def compiling(self) -> None:
        """Do nothing."""

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Do nothing."""

    def advance(self, iteration: int, timestamp: int) -> None:
        """Do nothing."""

    def row(self, row: Row) -> None:
        """Do nothing."""

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Do nothing."""


class Show(Protocol):
    """Watches the runs of a sweep, several of them at once, or a single one; used in a `with` statement."""

    def __enter__(self) -> Show:
        """Begin."""
        ...

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""
        ...

    def sweep(self, runs: int, ended: int) -> None:
        """Take note that a sweep of so many runs begins, so many of which have ended before."""
        ...

    def run(self) -> Observer:
        """Return who watches the next run."""
        ...

    def failed(self, label: str, error: str) -> None:
        """Take note that a run has failed."""
        ...

    def note(self, text: str) -> None:
        """Take note of what has happened to a sweep."""
        ...


class SilentShow:
    """Watches nothing."""

    def __enter__(self) -> SilentShow:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def sweep(self, runs: int, ended: int) -> None:
        """Do nothing."""

    def run(self) -> Silent:
        """Return nobody."""
        return Silent()

    def failed(self, label: str, error: str) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""
