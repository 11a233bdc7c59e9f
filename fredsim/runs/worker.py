"""The process of `--jobs` that does one run after another: tasks come in by its standard input, callbacks go out.

Every message is a pickle. When the input ends, because the parent process has ended or was killed, this one exits.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from fredsim.runs.observer import Observer

__all__ = ["STOP", "Relay", "main"]

STOP = "stop"  # sent instead of a task
ADVANCE_SECONDS = 0.1  # between two messages of how far a run is, at least


class Relay(Observer):
    """Passes the callbacks of a run on to the observer in another process."""

    def __init__(self, tell: Callable[..., None], seconds: float) -> None:
        """Take what sends a callback's name and arguments; `advance` is sent once in so many seconds at most."""
        self._tell = tell
        self._seconds = seconds
        self._told = 0.0
        for name in ("compiling", "begin", "row", "note", "end"):
            setattr(self, name, partial(tell, name))

    def advance(self, iteration: int, timestamp: int, simulated: float) -> None:
        """Pass it on, unless that was done just now."""
        now = time.perf_counter()
        if now - self._told >= self._seconds:
            self._told = now
            self._tell("advance", iteration, timestamp, simulated)


def main(jobs: int) -> None:
    """Do the tasks that come in, as one of `jobs` processes; send `done` after each, with its error or None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, and sends STOP
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # a user's server may read or print
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    from fredsim.system.processors import default_threads

    tasks: SimpleQueue[Any] = SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        while True:
            try:
                task = pickle.load(incoming)
            except (EOFError, pickle.UnpicklingError):  # its end, or half a message
                os._exit(1)
            if task == STOP:
                stop.set()
            else:
                tasks.put(task)

    threading.Thread(target=listen, daemon=True).start()

    def tell(*message: object) -> None:
        try:
            pickle.dump(message, outgoing)
            outgoing.flush()
        except BrokenPipeError:  # nobody listens any more
            os._exit(1)

    relay = Relay(tell, ADVANCE_SECONDS)
    threads = max(1, default_threads() // jobs)
    while True:
        tell("done", tasks.get().do(relay, stop.is_set, threads))
