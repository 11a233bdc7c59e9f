"""Does runs of a sweep side by side on a device, in one process (`--jobs device`).

Each run is what it is by itself, with its own files, rows, checkpoints and end; it is a call in a thread that has turns
(fredsim.system.turns). A turn ends when the run has a stretch of events for the device. When each run has one, the
device processes all of them together (fredsim.cuda.together), and each run goes on with what its own stretch gave.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fredsim.errors import ConfigError, FredsimError, NoMemoryError
from fredsim.runs.folder.growing_files import GrowingText
from fredsim.runs.many.tasks import OnEnd, Task
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.single.run import SIMULATED_RUN
from fredsim.simulation.paths.backends import resolve_backend
from fredsim.simulation.paths.loop import Parts, Simulation
from fredsim.simulation.paths.pace import SharedPace
from fredsim.simulation.paths.start import make_simulation
from fredsim.system.turns import Turns

__all__ = ["MOST_RUNS", "SideBySide"]

#: The most runs that are side by side; the next one begins when one of them ends.
MOST_RUNS = 32


class AloneError(Exception):
    """A run cannot go side by side with others; its argument says why."""


class SideBySide:
    """Does tasks side by side, then one by one those for which that is not possible."""

    def __init__(self, tasks: Sequence[Task], monitor: Monitor, stop: Callable[[], bool], on_end: OnEnd) -> None:
        self._monitor, self._stop, self._on_end, self._most = monitor, stop, on_end, MOST_RUNS
        self._left: deque[Task] = deque()
        self._alone: list[tuple[Task, str]] = []  # with the reason
        for task in tasks:
            if why := _why_alone(task):
                self._alone.append((task, why))
            else:
                self._left.append(task)
        self._pace = SharedPace()  # so that a round has about as many events of each run
        self._processed = time.perf_counter()  # when the last round was processed
        self._under_way: dict[Turns, Task] = {}
        self._questions: dict[Turns, Any] = {}  # the stretches that runs wait for

    def run(self) -> None:
        """Do all tasks, or stop early if asked to."""
        try:
            self._begin()
            while self._questions:
                under_way = len(self._under_way)
                self._process()
                if len(self._under_way) < under_way:
                    gc.collect()  # what refers to itself is not freed at once, and others may need its memory
                self._begin()
        finally:  # after an interrupt, or an error in this process, runs are still under way
            for turns in self._under_way:
                turns.give_up()
        self._alone.sort(key=lambda found: found[0].number)
        self._note_alone()
        for task, _ in self._alone:
            if self._stop():
                return
            self._on_end(task, task.do(self._monitor.observer(), self._stop))

    def _begin(self) -> None:
        """Begin as many runs as there may be side by side, up to their first stretch."""
        while self._left and len(self._under_way) < self._most and not self._stop():
            task = self._left.popleft()
            turns = Turns(partial(self._do, task))
            self._under_way[turns] = task
            self._go_on(turns)

    def _do(self, task: Task, ask: Callable[[Any], Any]) -> FredsimError | None:
        """Do a task, in a thread of its own; return why it failed, or None."""
        from fredsim.cuda.queue import PROCESS

        PROCESS.set(ask)
        hooks = replace(SIMULATED_RUN, simulation=self._simulation)
        return task.do(self._monitor.observer(), self._stop, hooks=hooks)

    def _simulation(self, parts: Parts, files: Mapping[str, GrowingText]) -> Simulation:
        """Make the simulation of a run that the device processes in stretches. Raises AloneError if it does not."""
        if parts.engine.numerics != "portable":  # first: such a run would set the pace of all others to single events
            raise AloneError("PyTorch computes its gradients")
        simulation = make_simulation(replace(parts, pace=self._pace))
        if simulation.choice.path != "queued":
            raise AloneError(f"path is {simulation.choice.path}, since {simulation.choice.why}")
        return simulation

    def _process(self) -> None:
        """Process the stretches of all runs, and let each go on to its next one."""
        from fredsim.cuda.together import process_together

        asked, self._questions = self._questions, {}
        error: Exception | None = None
        answers: Sequence[Any] = [None] * len(asked)
        try:
            answers = process_together(list(asked.values()))
        except (MemoryError, FredsimError) as failure:  # as each run would have met it by itself
            error = failure
        now = time.perf_counter()
        self._pace.all_took(now - self._processed, max((len(one.held) for one in asked.values()), default=0))
        self._processed = now
        for turns, answer in zip(asked, answers, strict=True):
            if isinstance(answer, MemoryError):
                self._go_on(turns, None, answer)
            else:
                self._go_on(turns, answer, error)

    def _go_on(self, turns: Turns, answer: Any = None, error: Exception | None = None) -> None:
        """Let a run go on to its next stretch, or to its end."""
        from fredsim.cuda.places import NoRoomError

        task = self._under_way[turns]
        try:
            question = turns.go_on(answer, error)
        except AloneError as found:
            del self._under_way[turns]
            self._alone.append((task, str(found)))
            return
        if not turns.ended:
            self._questions[turns] = question
            return
        del self._under_way[turns]
        if isinstance(turns.result, NoRoomError | NoMemoryError):
            if self._under_way:  # there may be room when one of these has ended: then it begins anew
                self._most = len(self._under_way)
                self._left.appendleft(task)
            elif isinstance(turns.result, NoRoomError):
                self._alone.append((task, "the device has no room for all that its clients hold"))
            else:
                self._alone.append((task, "there is too little memory"))
        else:
            self._on_end(task, turns.result)

    def _note_alone(self) -> None:
        """Say which runs are done by themselves, and why."""
        reasons: dict[str, list[str]] = {}
        for task, why in self._alone:
            reasons.setdefault(why, []).append(task.label)
        for why, labels in reasons.items():
            more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
            self._monitor.note(f"{labels[0]}{more}: not side by side with other runs; {why}")


def _why_alone(task: Task) -> str:
    """Return why a task cannot go side by side with others as far as its experiment says; "" if it perhaps can."""
    if task.alone:
        return "it has code of your own"
    try:
        backend = resolve_backend(task.experiment.backend)
    except ConfigError:  # the run itself will say so
        return ""
    return "" if backend == "cuda" else f"the backend is {backend}"
