"""How a run shows itself: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fredsim.recorder import Row

__all__ = ["Bar", "Lines", "make_observer"]

LINE_SECONDS = 2.0  # plain lines come no closer than this
BAR_SECONDS = 0.1


COMPILING = "compiling kernels, once on this machine …"


class Bar:
    """A live progress bar with iterations per second, time left and the latest validation error."""

    def __init__(self, console: Console) -> None:
        self._said = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[error]}"),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, rate="", error="", visible=False)

    def compiling(self) -> None:
        """Say so, the first time."""
        if not self._said:
            self._progress.console.print(COMPILING, highlight=False)
        self._said = True

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Show the bar of a run."""
        self._by_updates = iterations is None
        self._began = self._shown = time.perf_counter()
        total = updates if self._by_updates else iterations
        self._progress.reset(self._task, total=total, description=label, rate="", error="", visible=True)
        self._progress.start()

    def advance(self, iteration: int, timestamp: int) -> None:
        """Move the bar, at most ten times a second."""
        now = time.perf_counter()
        if now - self._shown >= BAR_SECONDS:
            self._shown = now
            done = timestamp if self._by_updates else iteration
            self._progress.update(self._task, completed=done, rate=f"{iteration / (now - self._began):,.0f} it/s")

    def row(self, row: Row) -> None:
        """Show the latest validation error."""
        self._progress.update(self._task, error=f"error {row.validation_error:.4f}")

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Leave one line of the run that ended."""
        self._progress.stop()
        self._progress.update(self._task, visible=False)
        self._progress.console.print(ending(label, summary), highlight=False)


class Lines:
    """A plain line now and then, and one at the end of each run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = False

    def compiling(self) -> None:
        """Say so, the first time."""
        if not self._said:
            self._console.print(COMPILING, highlight=False, soft_wrap=True)
        self._said = True

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Note the beginning."""
        self._label = label
        self._of = f"{iterations} iterations" if iterations else f"{updates} updates"
        self._began = self._shown = time.perf_counter()

    def advance(self, iteration: int, timestamp: int) -> None:
        """Say nothing: rows do."""

    def row(self, row: Row) -> None:
        """Say where the run is, unless that was said just now."""
        now = time.perf_counter()
        if now - self._shown >= LINE_SECONDS:
            self._shown = now
            rate = row.iteration / (now - self._began)
            self._console.print(
                f"{self._label}: iteration {row.iteration} of {self._of}, {rate:,.0f} it/s, "
                f"validation error {row.validation_error:.4f}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Say how the run ended."""
        self._console.print(ending(label, summary), highlight=False, soft_wrap=True)


def ending(label: str, summary: Mapping[str, Any]) -> str:
    """Return a line on a run that has ended."""
    error = summary["validation_error"]
    shown = "none" if error is None else f"{error:.4f}"
    return (
        f"{label}: {summary['status']} after {summary['iterations']} iterations in {summary['seconds']:.1f} s, "
        f"validation error {shown}, digest {summary['digest'][:12]}"
    )


def make_observer(console: Console) -> Bar | Lines:
    """Return a bar where the console is a terminal, else plain lines."""
    return Bar(console) if console.is_terminal else Lines(console)
