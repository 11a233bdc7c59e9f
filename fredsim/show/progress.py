"""Shows the progress of runs: on a terminal a live table with a row for each run in progress, elsewhere plain lines."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fredsim.errors import visible
from fredsim.runs.folder.result import NOT_FINITE
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.show.console import PlainConsole, status_text
from fredsim.simulation.record.recorder import Row

__all__ = ["LineMonitor", "TableMonitor", "make_monitor"]

LINE_SECONDS = 2.0  # the shortest time between two plain lines
BAR_SECONDS = 0.1  # the shortest time between two moves of a bar
NOTHING: dict[str, Any] = dict.fromkeys(("state", "done", "rate", "error"), "")  # the fields of a new row


class Length(NamedTuple):
    """The length of a run: a number of iterations, of updates or of simulated seconds; `unit` is one of them."""

    unit: str
    total: float

    def done(self, at: float) -> str:
        """Return how much of the run is done as text, such as `20/100`."""
        return f"{at:.6g}/{self.total:.6g} s" if self.unit == "second" else f"{at:.0f}/{self.total}"


class ConsoleMonitor(Monitor):
    """Prints permanent lines: one when the first kernel is compiled, and one for each run that has ended."""

    def __init__(self, console: PlainConsole) -> None:
        self.console = console
        self.counts: Counter[str] = Counter()  # the number of runs by how they ended
        self._compiling = False
        self._runs = 0

    def sweep(self, runs: int, ended: int) -> None:
        """Store how many runs a sweep has, and how many had ended before."""
        self._runs = runs
        self.counts["finished before"] = ended

    def note(self, text: str) -> None:
        """Print a line, without breaking it."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def compiling(self) -> None:
        """Print that kernels are being compiled, but only once."""
        if not self._compiling:
            self.note("compiling kernels, once on this machine …")
        self._compiling = True

    def ended(self, label: str, status: str, how: str) -> None:
        """Print how a run ended; in a sweep, with the count of runs."""
        self.counts["diverged" if status.endswith(NOT_FINITE) else status] += 1
        number = f"[{self.counts.total()}/{self._runs}] " if self._runs else ""
        line = Text.assemble(visible(f"{number}{label}: "), status_text(status), visible(f" {how}"))
        self.console.print(line, highlight=False, soft_wrap=True)

    def finished(self, label: str, summary: Mapping[str, Any]) -> None:
        """Print how a run ended; the `status` of its summary is for people."""
        column, metrics = str(summary.get("measured_by")), summary.get("metrics") or {}
        own = own_text(column, metrics) or f"{column} none" if column in metrics else ""
        measured = own or result_text(summary["validation_error"], summary.get("gap"), summary["validation_loss"])
        clocked = "time" in summary and summary["path"] != "live"
        simulated = f" and {summary['time']:.6g} simulated seconds" if clocked else ""
        how = f"after {summary['iterations']} iterations{simulated} in {summary['seconds']:.1f} s"
        self.ended(label, summary["status"], f"{how}, {measured}, digest {summary['digest'][:12]}")

    def failed(self, label: str, error: str) -> None:
        """Print why a run failed."""
        self.ended(label, "failed", f"({error})")


class ConsoleObserver(Observer):
    """Passes the callbacks of one run on to the monitor."""

    def __init__(self, monitor: ConsoleMonitor) -> None:
        self._monitor = monitor
        self._label = ""  # until the run begins
        self._first: tuple[int, float] | None = None  # iteration and time of the first report

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        """Store the label, the length and the time."""
        lengths = {"iteration": iterations, "update": updates, "second": seconds}
        self._label = label
        self._length = next(Length(unit, total) for unit, total in lengths.items() if total is not None)
        self._began = self._shown = time.perf_counter()
        self._first = None

    def advance(self, iteration: int, timestamp: int, simulated: float) -> None:
        """Store where the first report is."""
        self._first = self._first or (iteration, time.perf_counter())

    def row(self, row: Row) -> None:
        """Store where the first report is."""
        self._first = self._first or (row.iteration, time.perf_counter())

    def rate(self, iteration: int, now: float) -> str:
        """Return the iterations per second since the first report: a run may go on from a checkpoint. "" if unknown."""
        first, since = self._first or (iteration, now)
        return f"{(iteration - first) / (now - since):,.0f} it/s" if iteration > first and now > since else ""

    def note(self, text: str) -> None:
        """Print a note with the run's label before it."""
        self._monitor.note(f"{self._label}: {text}")

    def compiling(self) -> None:
        """Tell the monitor that a kernel is being compiled."""
        self._monitor.compiling()

    def end(self, label: str, summary: Mapping[str, Any], ending: str) -> None:
        """Tell the monitor that the run has ended."""
        self._monitor.finished(label, {**summary, "status": ending})


class TableMonitor(ConsoleMonitor):
    """A live table: a row for each run in progress, and one for the sweep."""

    def __init__(self, console: PlainConsole) -> None:
        super().__init__(console)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[state]}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[done]}", justify="right", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("{task.fields[error]}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self.progress.add_task("all runs", **NOTHING, visible=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the live table."""
        self.progress.stop()

    def sweep(self, runs: int, ended: int) -> None:
        """Show the sweep's row."""
        super().sweep(runs, ended)
        self.progress.update(self._task, total=runs, visible=True, completed=ended, done=f"{ended}/{runs}")

    def observer(self) -> Observer:
        """Return the observer of the next run."""
        return RowObserver(self)

    def failed(self, label: str, error: str) -> None:
        """Print why a run failed, and remove its row."""
        for task in [task for task in self.progress.tasks if task.description == visible(label)]:
            self.progress.remove_task(task.id)
        super().failed(label, error)

    def ended(self, label: str, status: str, how: str) -> None:
        """Print how a run ended, and show how many runs have ended, diverged and failed."""
        super().ended(label, status, how)
        bad = ", ".join(f"{self.counts[status]} {status}" for status in ("diverged", "failed") if self.counts[status])
        done = self.counts.total()
        self.progress.update(self._task, completed=done, done=f"{done}/{self._runs}", error=bad)


class RowObserver(ConsoleObserver):
    """One run's row: a bar, iterations per second, the time left and the latest validation error."""

    def __init__(self, monitor: TableMonitor) -> None:
        super().__init__(monitor)
        self._progress = monitor.progress
        self._task = self._progress.add_task("", total=None, **NOTHING, visible=False)

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        """Show the run's row."""
        super().begin(label, iterations, updates, seconds)
        fields = {**NOTHING, "state": "starting", "done": self._length.done(0)}
        self._progress.reset(self._task, total=self._length.total, description=visible(label), visible=True, **fields)

    def advance(self, iteration: int, timestamp: int, simulated: float) -> None:
        """Move the bar, unless it was moved less than BAR_SECONDS ago."""
        super().advance(iteration, timestamp, simulated)
        now = time.perf_counter()
        if now - self._shown >= BAR_SECONDS:
            self._shown = now
            at = {"iteration": iteration, "update": timestamp, "second": simulated}[self._length.unit]
            rate = self.rate(iteration, now)
            self._progress.update(self._task, completed=at, done=self._length.done(at), rate=rate)

    def row(self, row: Row) -> None:
        """Show the latest validation error, or gap."""
        super().row(row)
        measured = _row_text(row).removeprefix("validation ")
        self._progress.update(self._task, state="running", error=measured)

    def end(self, label: str, summary: Mapping[str, Any], ending: str) -> None:
        """Replace the row by a permanent line."""
        self._progress.remove_task(self._task)
        super().end(label, summary, ending)


class LineMonitor(ConsoleMonitor):
    """Prints plain lines: one every LINE_SECONDS at most, and one at the end of each run."""

    shown = 0.0  # the time at which the last line was printed

    def sweep(self, runs: int, ended: int) -> None:
        """Print how many runs there are."""
        super().sweep(runs, ended)
        self.note(f"{runs} runs{f', {ended} of them finished before' if ended else ''}")

    def observer(self) -> Observer:
        """Return the observer of the next run."""
        return LineObserver(self)


class LineObserver(ConsoleObserver):
    """Prints one run's plain lines."""

    _monitor: LineMonitor

    def begin(self, label: str, iterations: int | None, updates: int | None, seconds: float | None = None) -> None:
        """Let no line be printed too soon."""
        super().begin(label, iterations, updates, seconds)
        self._monitor.shown = max(self._monitor.shown, self._began)

    def row(self, row: Row) -> None:
        """Print how far the run has come, unless a line was printed less than LINE_SECONDS ago."""
        super().row(row)
        now = time.perf_counter()
        if now - self._monitor.shown >= LINE_SECONDS:
            self._monitor.shown = now
            unit, total = self._length
            at = {
                "iteration": f"{row.iteration} of {total} iterations",
                "update": f"{row.timestamp} of {total}, iteration {row.iteration}",
                "second": f"{row.time:.6g} of {total:.6g} simulated seconds, iteration {row.iteration}",
            }[unit]
            said = ", ".join(filter(None, (f"{unit} {at}", self.rate(row.iteration, now), _row_text(row))))
            self._monitor.note(f"{self._label}: {said}")


def _row_text(row: Row) -> str:
    if (
        math.isnan(row.validation_error) and math.isnan(row.validation_loss) and row.more
    ):  # of a problem: its own numbers
        column = next(iter(row.more))
        return own_text(column, row.more) or f"{column} none"
    return result_text(row.validation_error, row.more.get("gap"), row.validation_loss)


def own_text(column: str, found: Mapping[str, float | None]) -> str:
    """Return the value that a problem of the user's own is measured by; an empty text if it is not among those."""
    return f"{column} {found[column]:.6g}" if found.get(column) is not None else ""


def result_text(error: float | None, gap: float | None, loss: float | None) -> str:
    """Return a run's validation error as text; or its gap, or else its validation loss, if it has no error."""
    if gap is not None:
        return f"gap {gap:.3e}"
    if (error is None or math.isnan(error)) and loss is not None and math.isfinite(loss):
        return f"validation loss {loss:.4g}"
    return "validation error none" if error is None else f"validation error {error:.4f}"


def make_monitor() -> TableMonitor | LineMonitor:
    """Return what shows progress on stderr: a live table if it is a terminal, otherwise plain lines."""
    console = PlainConsole(stderr=True)
    return TableMonitor(console) if console.is_terminal else LineMonitor(console)
