"""A process of `--jobs`, which does one run after another: reads tasks from its standard input, and writes callbacks.

Every message is a pickle. When the input ends, because the parent process has ended or was killed, this process exits.
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
ADVANCE_SECONDS = 0.1  # the shortest time between two messages about a run's progress


class Relay(Observer):
    """Passes the callbacks of a run on to an observer in another process."""

    def __init__(self, send: Callable[..., None], seconds: float) -> None:
        """`send` sends a callback's name and arguments; `advance` is sent at most once in `seconds` seconds."""
        self._send = send
        self._seconds = seconds
        self._last_sent = 0.0
        for name in ("compiling", "begin", "row", "note", "end"):
            setattr(self, name, partial(send, name))

    def advance(self, iteration: int, timestamp: int, simulated: float) -> None:
        """Pass the progress on, unless the last message about it is too recent."""
        now = time.perf_counter()
        if now - self._last_sent >= self._seconds:
            self._last_sent = now
            self._send("advance", iteration, timestamp, simulated)


def main(jobs: int) -> None:
    """Do the tasks that come in, as one of `jobs` processes; send `done` after each, with its error or None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and sends STOP
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as null:  # a user's server may read from stdin, or print to stdout
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)

    from fredsim.system.processors import default_threads

    tasks: SimpleQueue[Any] = SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        while True:
            try:
                task = pickle.load(incoming)
            except (EOFError, pickle.UnpicklingError):  # the end of the input, or half a message
                os._exit(1)
            if task == STOP:
                stop.set()
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
    threads = max(1, default_threads() // jobs)
    while True:
        send("done", tasks.get().do(relay, stop.is_set, threads))
