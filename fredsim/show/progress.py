"""How runs show themselves: a live table on a terminal, a row for each run under way; plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fredsim.runs.observer import Observer, Show
from fredsim.simulation.recorder import Row

__all__ = ["Bars", "Lines", "make_show"]

LINE_SECONDS = 2.0  # plain lines come no closer than this
BAR_SECONDS = 0.1


class Reports(Show):
    """Lines that stay: one when kernels are compiled for the first time, one for each run that has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.counts: Counter[str] = Counter()  # runs by how they ended
        self._compiling = False
        self._runs = 0

    def sweep(self, runs: int, ended: int) -> None:
        """Take note of how many runs a sweep has, and how many have ended before."""
        self._runs = runs
        self.counts["finished before"] = ended

    def note(self, text: str) -> None:
        """Print a line, however long."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def compiling(self) -> None:
        """Say so, the first time."""
        if not self._compiling:
            self.note("compiling kernels, once on this machine …")
        self._compiling = True

    def ended(self, label: str, status: str, how: str) -> None:
        """Say how a run ended; of a sweep also its number."""
        self.counts[status] += 1
        number = f"[{self.counts.total()}/{self._runs}] " if self._runs else ""
        self.note(f"{number}{label}: {status} {how}")

    def finished(self, label: str, summary: Mapping[str, Any]) -> None:
        """Say how a run ended that has a summary."""
        error = summary["validation_error"]
        shown = "none" if error is None else f"{error:.4f}"
        how = f"after {summary['iterations']} iterations in {summary['seconds']:.1f} s"
        self.ended(label, summary["status"], f"{how}, validation error {shown}, digest {summary['digest'][:12]}")

    def failed(self, label: str, error: str) -> None:
        """Say why a run failed."""
        self.ended(label, "failed", f"({error})")


class RunReports(Observer):
    """Shows one run."""

    def __init__(self, show: Reports) -> None:
        self._show = show

    def compiling(self) -> None:
        """Say so, the first time."""
        self._show.compiling()

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Say how the run ended."""
        self._show.finished(label, summary)


class Bars(Reports):
    """A live table: a row for each run under way, and one for the sweep."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[state]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[error]}"),
            console=console,
            transient=True,
        )
        self._task = self.progress.add_task("all runs", state="", rate="", error="", visible=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the live table away."""
        self.progress.stop()

    def sweep(self, runs: int, ended: int) -> None:
        """Show the row of the sweep."""
        super().sweep(runs, ended)
        self.progress.update(self._task, total=runs, visible=True, completed=ended)

    def run(self) -> Observer:
        """Return who shows the next run."""
        return BarRun(self)

    def failed(self, label: str, error: str) -> None:
        """Say why a run failed, and take its row away."""
        for task in [task for task in self.progress.tasks if task.description == label]:
            self.progress.remove_task(task.id)
        super().failed(label, error)

    def ended(self, label: str, status: str, how: str) -> None:
        """Say how a run ended, and show how many have, and how many of them badly."""
        super().ended(label, status, how)
        bad = ", ".join(f"{self.counts[status]} {status}" for status in ("diverged", "failed") if self.counts[status])
        self.progress.update(self._task, completed=self.counts.total(), error=bad)


class BarRun(RunReports):
    """One run's row: its bar, iterations per second, time left and the latest validation error."""

    def __init__(self, show: Bars) -> None:
        super().__init__(show)
        self._progress = show.progress
        self._task = self._progress.add_task("", total=None, state="", rate="", error="", visible=False)

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Show the row."""
        self._by_updates = iterations is None
        self._began = self._shown = time.perf_counter()
        total = updates if self._by_updates else iterations
        self._progress.reset(
            self._task, total=total, description=label, state="starting", rate="", error="", visible=True
        )

    def advance(self, iteration: int, timestamp: int) -> None:
        """Move the bar, at most ten times a second."""
        now = time.perf_counter()
        if now - self._shown >= BAR_SECONDS:
            self._shown = now
            done = timestamp if self._by_updates else iteration
            self._progress.update(self._task, completed=done, rate=f"{iteration / (now - self._began):,.0f} it/s")

    def row(self, row: Row) -> None:
        """Show the latest validation error."""
        self._progress.update(self._task, state="running", error=f"error {row.validation_error:.4f}")

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Leave one line of the run that ended."""
        self._progress.remove_task(self._task)
        super().end(label, summary)


class Lines(Reports):
    """A plain line now and then, and one at the end of each run."""

    shown = 0.0

    def sweep(self, runs: int, ended: int) -> None:
        """Say how many runs there are."""
        super().sweep(runs, ended)
        self.note(f"{runs} runs{f', {ended} of them finished before' if ended else ''}")

    def run(self) -> Observer:
        """Return who tells of the next run."""
        return LineRun(self)


class LineRun(RunReports):
    """One run's lines."""

    _show: Lines

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Note the beginning."""
        self._label = label
        self._of = f"{iterations} iterations" if iterations else f"{updates} updates"
        self._began = time.perf_counter()
        self._show.shown = max(self._show.shown, self._began)

    def row(self, row: Row) -> None:
        """Say where the run is, unless a line was printed just now."""
        now = time.perf_counter()
        if now - self._show.shown >= LINE_SECONDS:
            self._show.shown = now
            rate = row.iteration / (now - self._began)
            self._show.note(
                f"{self._label}: iteration {row.iteration} of {self._of}, {rate:,.0f} it/s, "
                f"validation error {row.validation_error:.4f}"
            )


def make_show(console: Console) -> Bars | Lines:
    """Return a live table where the console is a terminal, else plain lines."""
    return Bars(console) if console.is_terminal else Lines(console)
