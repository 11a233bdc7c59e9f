"""What a process does that does tasks for another: it reads one after another, and writes callbacks.

Every message is a pickle. When the input ends, because the parent process has ended or was killed, this process exits.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import TextIOWrapper
from queue import SimpleQueue
from typing import IO, Any

from fredsim.errors import FredsimWarning, SimulationError, on_command_line, options_are
from fredsim.plugins.exits import end_process, exits_raise
from fredsim.plugins.modules import places, put_places
from fredsim.runs.processes.observer import Observer
from fredsim.system.environment import take_any_letter, wrong_surroundings

__all__ = ["STOP", "Placed", "Relay", "be_silent", "for_one_task", "main", "serve"]

STOP = "stop"  # sent instead of a task
ADVANCE_SECONDS = 0.1  # the shortest time between two messages about a run's progress

_tasks_alone: list[object] = []  # that this process has begun for


def for_one_task() -> bool:
    """Return whether this process was begun for one task, which must be done in a process that has done nothing."""
    return bool(_tasks_alone)


class Relay(Observer):
    """Passes the callbacks of a run on to an observer in another process."""

    def __init__(self, send: Callable[..., None], seconds: float, checkpoint: Callable[[int], None]) -> None:
        """`send` sends a callback's name and arguments; `advance` is sent at most once in `seconds` seconds.

        `checkpoint` sends the checkpoint at an iteration, or that there is one.
        """
        self._send, self._checkpoint = send, checkpoint
        self._seconds = seconds
        self._last_sent = 0.0
        for name in ("compiling", "begin", "row", "note", "memory", "end"):
            setattr(self, name, partial(send, name))

    def checkpoint(self, iteration: int) -> None:
        """Pass it on."""
        self._checkpoint(iteration)

    def advance(self, iteration: int, timestamp: int, simulated: float) -> None:
        """Pass the progress on, unless the last message about it is too recent."""
        now = time.perf_counter()
        if now - self._last_sent >= self._seconds:
            self._last_sent = now
            self._send("advance", iteration, timestamp, simulated)


def _folder() -> str:
    """Return the current folder; "" if it was deleted."""
    with suppress(OSError):
        return os.getcwd()
    return ""


@dataclass(frozen=True)
class Placed:
    """A task (fredsim.runs.processes.process.ProcessTask) for one of `jobs` processes that share the processors.

    The process has the current folder and the environment of this one, looks up modules, and words its messages, as
    this one does.
    """

    task: Any
    jobs: int = 1
    folder: str = field(default_factory=_folder)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    path: list[str] = field(default_factory=lambda: list(sys.path))
    places: object = field(default_factory=places)
    on_command_line: bool = field(default_factory=on_command_line)

    def warm_up(self) -> None:
        """Load what tasks like this one share, as far as that is possible: the task itself finds out what is wrong."""
        self._move()
        with suppress(Exception):
            self.task.warm_up()

    def do(self, observer: Observer, stop: Callable[[], bool]) -> Exception | None:
        """Do the task; return why it failed, or None."""
        from fredsim.system.limits import default_threads

        if self.task.alone:
            _tasks_alone.append(self.task)
        self._move()
        put_places(self.places)
        with options_are(on_command_line=self.on_command_line):
            try:
                failure: Exception | None = self.task.do(observer, stop, max(1, default_threads() // self.jobs))
            except (OSError, MemoryError, ImportError, RuntimeError) as error:
                if (what := wrong_surroundings(error)) is None:
                    raise
                return SimulationError(what)
            return failure

    def _move(self) -> None:
        with suppress(OSError):  # it was deleted
            os.chdir(self.folder)
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        sys.path[:] = self.path


def main() -> None:
    """Do the tasks that come in through the standard input."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    be_silent()
    serve(incoming, outgoing)


def be_silent() -> None:
    """Leave the terminal, interrupts and warnings to the parent; what is printed goes to the messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and sends STOP
    take_any_letter(sys.stdout)  # as long as it is the file that Python has opened
    with open(os.devnull, "rb") as null:  # a user's server may read from stdin, or print to stdout
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)
    if isinstance(sys.stdout, TextIOWrapper):
        # Each line at once, as this process may be killed, and whole (see PYTHONUNBUFFERED), as others print, too
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    warnings.simplefilter("ignore", FredsimWarning)  # the parent warns, once


def serve(incoming: IO[bytes], outgoing: IO[bytes], *first: Placed) -> None:
    """Do these tasks, and then those that come in; send `done` after each, with its error or None."""
    tasks: SimpleQueue[Placed] = SimpleQueue()
    stop = threading.Event()
    for task in first:
        tasks.put(task)

    def listen() -> None:
        while True:
            try:
                task = pickle.load(incoming)
            except (EOFError, OSError, pickle.UnpicklingError):  # the end of the input, or half a message
                end_process(1)
            if task == STOP:
                stop.set()
            else:
                tasks.put(task)

    threading.Thread(target=listen, daemon=True).start()

    def send(*message: object) -> None:
        try:
            pickle.dump(message, outgoing)
            outgoing.flush()
        except (BrokenPipeError, ConnectionResetError):  # the parent is gone
            end_process(1)

    relay = Relay(send, ADVANCE_SECONDS, partial(send, "checkpoint"))
    with exits_raise():
        while True:
            send("done", tasks.get().do(relay, stop.is_set))
