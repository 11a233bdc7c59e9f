"""Does a task in a process of its own, while this one waits: reports what that one does, and stops it when asked."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress

from fredsim.runs.processes.forking import new_process
from fredsim.runs.processes.observer import Observer
from fredsim.runs.processes.process import Process, ProcessTask, ended_early
from fredsim.runs.processes.worker import Placed

__all__ = ["do_apart"]

POLL_SECONDS = 0.1  # between two checks of whether to stop


def do_apart(
    task: ProcessTask, observer: Observer, stop: Callable[[], bool], process: Process | None = None
) -> Exception | None:
    """Do a task in a process of its own, or in this new one; return why it failed, or None."""
    process, ended = process or new_process(), threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            if stop():
                process.stop()
                return

    watching = threading.Thread(target=watch, daemon=True)
    try:
        process.send(Placed(task))
        watching.start()
        while True:
            try:
                name, *arguments = process.receive()
            except (EOFError, OSError, pickle.UnpicklingError):  # the process has ended
                return ended_early(process.close(), task.own)
            if name == "done":
                failure: Exception | None = arguments[0]
                return failure
            with suppress(OSError):  # of a checkpoint that was replaced before the observer could read it
                getattr(observer, name)(*arguments)
    finally:
        ended.set()
        process.kill()
        process.close()
