"""The progress of runs: a live table on a terminal, with a row for each run under way; plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fredsim.runs.observer import Monitor, Observer
from fredsim.simulation.recorder import Row

__all__ = ["LineMonitor", "TableMonitor", "make_monitor"]

LINE_SECONDS = 2.0  # between two plain lines, at least
BAR_SECONDS = 0.1  # between two moves of a bar, at least
NOTHING: dict[str, Any] = dict.fromkeys(("state", "done", "rate", "error"), "")  # what a row has at first


@dataclass(frozen=True)
class Length:
    """How long a run is: one of the three is given, `seconds` are simulated ones."""

    iterations: int | None
    updates: int | None
    seconds: float | None

    @property
    def total(self) -> float | None:
        """The one that is given."""
        return next((one for one in (self.iterations, self.updates, self.seconds) if one is not None), None)

    @property
    def words(self) -> str:
        """The length in words."""
        unit = "iterations" if self.iterations else "updates" if self.updates else "simulated seconds"
        return f"{self.total if self.seconds is None else f'{self.seconds:.6g}'} {unit}"

    def at(self, iteration: int, timestamp: int, simulated: float) -> float:
        """Return how far a run is."""
        return iteration if self.iterations is not None else timestamp if self.updates is not None else simulated

    def done(self, at: float) -> str:
        """Return how much is done of it."""
        return f"{at:.0f}/{self.total}" if self.seconds is None else f"{at:.6g}/{self.seconds:.6g} s"


class ConsoleMonitor(Monitor):
    """Prints the lines that stay: one when the first kernel is compiled, one for each run that has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.counts: Counter[str] = Counter()  # runs by how they ended
        self._compiling = False
        self._runs = 0

    def sweep(self, runs: int, ended: int) -> None:
        """Note how many runs a sweep has, and how many ended before."""
        self._runs = runs
        self.counts["finished before"] = ended

    def note(self, text: str) -> None:
        """Print a line, however long."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def compiling(self) -> None:
        """Print that kernels are compiled, the first time."""
        if not self._compiling:
            self.note("compiling kernels, once on this machine …")
        self._compiling = True

    def ended(self, label: str, status: str, how: str) -> None:
        """Print how a run ended, in a sweep with a count."""
        self.counts[status] += 1
        number = f"[{self.counts.total()}/{self._runs}] " if self._runs else ""
        self.note(f"{number}{label}: {status} {how}")

    def finished(self, label: str, summary: Mapping[str, Any]) -> None:
        """Print how a run with a summary ended."""
        measured = in_words(summary["validation_error"], summary.get("gap"))
        clocked = "time" in summary and summary["path"] != "live"
        simulated = f" and {summary['time']:.6g} simulated seconds" if clocked else ""
        how = f"after {summary['iterations']} iterations{simulated} in {summary['seconds']:.1f} s"
        self.ended(label, summary["status"], f"{how}, {measured}, digest {summary['digest'][:12]}")

    def failed(self, label: str, error: str) -> None:
        """Print why a run failed."""
        self.ended(label, "failed", f"({error})")


class ConsoleObserver(Observer):
    """Tells the monitor what happens to one run."""

    def __init__(self, monitor: ConsoleMonitor) -> None:
        self._monitor = monitor
        self._label = ""  # until the run begins

    def note(self, text: str) -> None:
        """Pass it on with the run's label."""
        self._monitor.note(f"{self._label}: {text}")

    def compiling(self) -> None:
        """Pass it on."""
        self._monitor.compiling()

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Pass it on."""
        self._monitor.finished(label, summary)


class TableMonitor(ConsoleMonitor):
    """A live table: a row for each run under way, and one for the sweep."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[state]}"),
            BarColumn(),
            TextColumn("{task.fields[done]}", justify="right"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[error]}"),
            console=console,
            transient=True,
        )
        self._task = self.progress.add_task("all runs", **NOTHING, visible=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the live table away."""
        self.progress.stop()

    def sweep(self, runs: int, ended: int) -> None:
        """Show the row of the sweep."""
        super().sweep(runs, ended)
        self.progress.update(self._task, total=runs, visible=True, completed=ended, done=f"{ended}/{runs}")

    def observer(self) -> Observer:
        """Return the observer of the next run."""
        return RowObserver(self)

    def failed(self, label: str, error: str) -> None:
        """Print why a run failed, and remove its row."""
        for task in [task for task in self.progress.tasks if task.description == label]:
            self.progress.remove_task(task.id)
        super().failed(label, error)

    def ended(self, label: str, status: str, how: str) -> None:
        """Print how a run ended, and show how many have, and how many of them diverged or failed."""
        super().ended(label, status, how)
        bad = ", ".join(f"{self.counts[status]} {status}" for status in ("diverged", "failed") if self.counts[status])
        done = self.counts.total()
        self.progress.update(self._task, completed=done, done=f"{done}/{self._runs}", error=bad)


class RowObserver(ConsoleObserver):
    """One run's row: its bar, iterations per second, time left and the latest validation error."""

    def __init__(self, monitor: TableMonitor) -> None:
        super().__init__(monitor)
        self._progress = monitor.progress
        self._task = self._progress.add_task("", total=None, **NOTHING, visible=False)

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        """Show the row."""
        self._label = label
        self._length = Length(iterations, updates, seconds)
        self._began = self._shown = time.perf_counter()
        fields = {**NOTHING, "state": "starting", "done": self._length.done(0)}
        self._progress.reset(self._task, total=self._length.total, description=label, visible=True, **fields)

    def advance(self, iteration: int, timestamp: int, simulated: float) -> None:
        """Move the bar, now and then."""
        now = time.perf_counter()
        if now - self._shown >= BAR_SECONDS:
            self._shown = now
            at = self._length.at(iteration, timestamp, simulated)
            rate = f"{iteration / (now - self._began):,.0f} it/s"
            self._progress.update(self._task, completed=at, done=self._length.done(at), rate=rate)

    def row(self, row: Row) -> None:
        """Show the latest validation error, or gap."""
        measured = in_words(row.validation_error, row.more.get("gap")).removeprefix("validation ")
        self._progress.update(self._task, state="running", error=measured)

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Replace the row by a line that stays."""
        self._progress.remove_task(self._task)
        super().end(label, summary)


class LineMonitor(ConsoleMonitor):
    """A plain line now and then, and one at the end of each run."""

    shown = 0.0  # when the last line was printed

    def sweep(self, runs: int, ended: int) -> None:
        """Print how many runs there are."""
        super().sweep(runs, ended)
        self.note(f"{runs} runs{f', {ended} of them finished before' if ended else ''}")

    def observer(self) -> Observer:
        """Return the observer of the next run."""
        return LineObserver(self)


class LineObserver(ConsoleObserver):
    """One run's lines."""

    _monitor: LineMonitor

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        """Note the label, the length and the time."""
        self._label = label
        self._length = Length(iterations, updates, seconds)
        self._began = time.perf_counter()
        self._monitor.shown = max(self._monitor.shown, self._began)

    def row(self, row: Row) -> None:
        """Print how far the run is, unless a line was printed just now."""
        now = time.perf_counter()
        if now - self._monitor.shown >= LINE_SECONDS:
            self._monitor.shown = now
            rate = row.iteration / (now - self._began)
            at = f"iteration {row.iteration} of {self._length.words}"
            if self._length.updates is not None:
                at = f"update {row.timestamp} of {self._length.updates}, iteration {row.iteration}"
            if self._length.seconds is not None:
                at = f"second {row.time:.6g} of {self._length.words}, iteration {row.iteration}"
            measured = in_words(row.validation_error, row.more.get("gap"))
            self._monitor.note(f"{self._label}: {at}, {rate:,.0f} it/s, {measured}")


def in_words(error: float | None, gap: float | None) -> str:
    """Return what a run has come to: its validation error, or the gap where it has that instead."""
    if gap is not None:
        return f"gap {gap:.3e}"
    return "validation error none" if error is None else f"validation error {error:.4f}"


def make_monitor(console: Console) -> TableMonitor | LineMonitor:
    """Return a live table where the console is a terminal, else plain lines."""
    return TableMonitor(console) if console.is_terminal else LineMonitor(console)
