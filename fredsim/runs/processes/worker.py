"""A process of `--jobs`, which does one run after another: reads tasks from its standard input, and writes callbacks.

Every message is a pickle. When the input ends, because the parent process has ended or was killed, this process exits.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from fredsim.errors import FredsimWarning, SimulationError, on_command_line, options_are
from fredsim.plugins.modules import places, put_places
from fredsim.runs.processes.observer import Observer
from fredsim.system.surroundings import wrong_surroundings

__all__ = ["FORKS", "STOP", "Placed", "Relay", "main"]

STOP = "stop"  # sent instead of a task
#: Whether processes can be forked, safely enough: on macOS, libraries of the system cannot go on in a forked process.
FORKS = sys.platform == "linux"
ADVANCE_SECONDS = 0.1  # the shortest time between two messages about a run's progress


class Relay(Observer):
    """Passes the callbacks of a run on to an observer in another process."""

    def __init__(self, send: Callable[..., None], seconds: float) -> None:
        """`send` sends a callback's name and arguments; `advance` is sent at most once in `seconds` seconds."""
        self._send = send
        self._seconds = seconds
        self._last_sent = 0.0
        for name in ("compiling", "begin", "row", "note", "memory", "end"):
            setattr(self, name, partial(send, name))

    def advance(self, iteration: int, timestamp: int, simulated: float) -> None:
        """Pass the progress on, unless the last message about it is too recent."""
        now = time.perf_counter()
        if now - self._last_sent >= self._seconds:
            self._last_sent = now
            self._send("advance", iteration, timestamp, simulated)


@dataclass(frozen=True)
class Placed:
    """A task for another process, which looks up modules, and words its messages, as this process does."""

    task: Any
    places: object = field(default_factory=places)
    on_command_line: bool = field(default_factory=on_command_line)
    #: Whether a process is forked for the task.
    forks = False

    def do(self, observer: Observer, stop: Callable[[], bool], threads: int | None = None) -> Exception | None:
        """Do the task."""
        put_places(self.places)
        with options_are(on_command_line=self.on_command_line):
            try:
                failure: Exception | None = self.task.do(observer, stop, threads)
            except (OSError, MemoryError, ImportError, RuntimeError) as error:
                if (what := wrong_surroundings(error)) is None:
                    raise
                return SimulationError(what)
            return failure


def main(jobs: int) -> None:
    """Do the tasks that come in, as one of `jobs` processes; send `done` after each, with its error or None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and sends STOP
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as null:  # a user's server may read from stdin, or print to stdout
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)

    from fredsim.system.processors import default_threads

    warnings.simplefilter("ignore", FredsimWarning)  # the parent warns, once
    tasks: SimpleQueue[Any] = SimpleQueue()
    stop = threading.Event()
    forked: list[int] = []  # the process that does the present task, if that is not this one

    def tell(number: signal.Signals) -> None:
        for process in forked:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def listen() -> None:
        while True:
            try:
                task = pickle.load(incoming)
            except (EOFError, pickle.UnpicklingError):  # the end of the input, or half a message
                tell(signal.SIGKILL)
                os._exit(1)
            if task == STOP:
                stop.set()
                tell(signal.SIGTERM)
            else:
                tasks.put(task)

    threading.Thread(target=listen, daemon=True).start()

    def send(*message: object) -> None:
        try:
            pickle.dump(message, outgoing)
            outgoing.flush()
        except BrokenPipeError:  # the parent is gone
            os._exit(1)

    relay = Relay(send, ADVANCE_SECONDS)
    setattr(relay, "checkpoint", partial(send, "checkpoint"))  # noqa: B010  a Relay's other methods are set likewise
    threads = max(1, default_threads() // jobs)
    while True:
        task = tasks.get()
        if not (FORKS and task.forks):
            send("done", task.do(relay, stop.is_set, threads))
            continue
        code = _fork(lambda: send("done", task.do(relay, stop.is_set, threads)), stop, forked)  # noqa: B023  done at once
        if code:
            send("done", SimulationError(f"the process of the run ended with exit code {code}"))


def _fork(do: Callable[[], None], stop: threading.Event, forked: list[int]) -> int:
    """Call `do` in a forked process, and return its exit code; its id is in `forked` meanwhile. SIGTERM sets `stop`.

    The thread that reads the input is left behind: it holds no lock while it waits for the next message.
    """
    import fredsim.kernels.mlp.engine  # noqa: F401  so that not every forked process has to

    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())  # not in the new process, where it could be too late
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of a fork beside other threads
        process = os.fork()
    if process == 0:
        try:
            do()
        except BaseException:  # the parent learns the exit code
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    signal.signal(signal.SIGTERM, before)
    forked.append(process)
    if stop.is_set():
        os.kill(process, signal.SIGTERM)
    _, status = os.waitpid(process, 0)
    forked.clear()
    return os.waitstatus_to_exitcode(status)
