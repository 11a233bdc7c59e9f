"""The process of `--jobs` that does one run after another: tasks come in by its standard input, what happens goes out.

Every message is a pickle. When the input ends, because the process that started this one has ended or was killed, this
one ends at once: a run is never done for nobody.
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

STOP = "stop"  # what is sent instead of a task
MESSAGE_SECONDS = 0.1  # how far a run is, is said no more often


class Relay(Observer):
    """An observer in another process: passes on what happens to the one that shows it."""

    def __init__(self, tell: Callable[..., None], seconds: float) -> None:
        """Pass on names and their arguments by `tell`; how far a run is, no more often than in so many seconds."""
        self._tell = tell
        self._seconds = seconds
        self._told = 0.0
        for name in ("compiling", "begin", "row", "end"):
            setattr(self, name, partial(tell, name))

    def advance(self, iteration: int, timestamp: int) -> None:
        """Pass it on, now and then."""
        now = time.perf_counter()
        if now - self._told >= self._seconds:
            self._told = now
            self._tell("advance", iteration, timestamp)


def main(jobs: int) -> None:
    """Do the tasks that come in, one of so many processes; say `done` after each, with the error where it failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us hears it, and says when to stop
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # a user's server may read or print
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    from fredsim.runs.tasks import do  # takes a while: not before an interrupt is ignored
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

    relay = Relay(tell, MESSAGE_SECONDS)
    share = max(1, default_threads() // jobs)
    while True:
        tell("done", do(tasks.get(), relay, stop.is_set, share))
