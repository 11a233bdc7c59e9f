"""Does runs in parallel, in processes each of which does one run after another (fredsim.runs.processes.worker).

A run with a user's own code has a process to itself. A process that dies fails only the run that it was doing.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from fredsim.errors import ConfigError
from fredsim.plugins.modules import has_file
from fredsim.runs.processes.forking import new_process
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.processes.process import Process, ProcessTask, ended_early
from fredsim.runs.processes.worker import Placed
from fredsim.system.environment import file_room

__all__ = ["Processes"]

POLL_SECONDS = 0.1  # between two checks of whether to stop
FILES_OF_A_PROCESS = 2  # which this process has open for each other one: the connections with it


class Processes:
    """`jobs` processes and the tasks left to do; `on_end` is called when a task ends, by one thread at a time."""

    def __init__(
        self,
        tasks: Sequence[ProcessTask],
        jobs: int,
        monitor: Monitor,
        stop: Callable[[], bool],
        on_end: Callable[[Any, Exception | None], None],
    ) -> None:
        """Raise ConfigError if a task is of code that only this process has."""
        if alone := sorted({name for task in tasks for name in task.own if not has_file(name)}):
            what = f"the module {alone[0]}, a script or a notebook, cannot be imported in other processes"
            raise ConfigError(f"jobs is {jobs}; {what}: put your code into a module of its own, or give 1")
        self._tasks = deque(tasks)
        self._jobs = min(jobs, len(tasks))
        room = file_room()
        if room is not None and self._jobs > max(1, room // FILES_OF_A_PROCESS):
            self._jobs = max(1, room // FILES_OF_A_PROCESS)
            monitor.note(f"{self._jobs} of {jobs} jobs are done in parallel: few files may be open (ulimit -n)")
        self._monitor = monitor
        self._stop = stop
        self._on_end = on_end
        self._lock = threading.Lock()  # guards the attributes below, and the callbacks
        self._processes: set[Process] = set()
        self._killed = False
        self._first = True
        self._compiled = threading.Event()  # set once the first run has compiled its kernels, which others then reuse

    def run(self) -> None:
        """Do all tasks, or stop early if asked to."""
        with ThreadPoolExecutor(self._jobs) as pool:
            serving: Sequence[Future[None]] = [pool.submit(self._serve) for _ in range(self._jobs)]
            try:
                left = set(serving)
                while left:
                    done, left = wait(left, timeout=POLL_SECONDS)
                    for future in done:
                        future.result()
                    if self._stop():
                        self._ask_to_stop()
            finally:  # after a second interrupt, or an error in this process, runs are still under way
                self._kill()

    def _serve(self) -> None:
        """Let one process do one task after another until none is left; replace it if it dies, or for a task alone."""
        process: Process | None = None
        try:
            while (task := self._next()) is not None:
                if process is not None and task.alone:
                    self._end(process)
                    process = None
                process = process or self._start()
                failure: Exception | None
                try:
                    failure = self._watch(process, task)
                except (EOFError, OSError, pickle.UnpicklingError):  # the process has ended
                    code, process = self._end(process), None
                    failure = ended_early(code, task.own)
                if process is not None and task.alone:
                    self._end(process)
                    process = None
                with self._lock:
                    if not self._killed:
                        self._on_end(task, failure)
                self._compiled.set()
        finally:
            self._compiled.set()
            if process is not None:
                self._end(process)

    def _start(self) -> Process:
        with self._lock:
            process = new_process()
            self._processes.add(process)
            if self._killed:
                process.kill()
        return process

    def _end(self, process: Process) -> int:
        with self._lock:
            self._processes.discard(process)
        return process.close()

    def _next(self) -> ProcessTask | None:
        """Return the next task, or None; all tasks but the first wait until the first one's kernels are compiled."""
        with self._lock:
            first, self._first = self._first, False
        if not first:
            self._compiled.wait()
        with self._lock:
            return self._tasks.popleft() if self._tasks and not self._killed and not self._stop() else None

    def _watch(self, process: Process, task: ProcessTask) -> Exception | None:
        """Let the process do a task; return why it failed, or None. Raises EOFError if the process ends meanwhile."""
        with self._lock:
            observer = self._monitor.observer()
        process.send(Placed(task, self._jobs))
        while True:
            name, *arguments = process.receive()
            if name == "done":
                failure: Exception | None = arguments[0]
                return failure
            with self._lock:
                getattr(observer, name)(*arguments)
            if name == "row":
                self._compiled.set()

    # The thread that Ctrl-C interrupts must not take the lock: if it is interrupted just as it has taken it, which can
    # happen from Python 3.14 on, nobody ever gives the lock back.

    def _ask_to_stop(self) -> None:
        self._compiled.set()
        for process in list(self._processes):
            process.stop()

    def _kill(self) -> None:
        """End every process at once; one that another thread starts meanwhile is ended by that (`_start`)."""
        self._killed = True
        self._compiled.set()
        for process in list(self._processes):
            process.kill()
