"""Does runs in parallel, in processes each of which does one run after another (fredsim.runs.processes.worker).

These are plain processes with pipes, not `multiprocessing`: a script need not guard its main module, a process that
dies fails only the run that it was doing, and when a sweep is killed its processes end, too.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Protocol

from fredsim.errors import SimulationError
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.processes.worker import STOP, Placed
from fredsim.system.surroundings import file_room

__all__ = ["Processes"]

POLL_SECONDS = 0.1  # between two checks of whether to stop
FILES_OF_A_PROCESS = 2  # which this process has open for each other one: the pipes to it and from it


class ProcessTask(Protocol):
    """A task for another process: an object that is pickled and sent to it."""

    def do(self, observer: Observer, stop: Callable[[], bool], threads: int | None = None) -> Exception | None:
        """Do the task on `threads` threads, calling the observer; return why it failed, or None."""


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
        """Let one process do one task after another until none is left; replace the process if it dies."""
        process = self._start()
        try:
            while (task := self._next()) is not None:
                failure: Exception | None
                try:
                    failure = self._watch(process, task)
                except (EOFError, OSError, pickle.UnpicklingError):  # the process has ended
                    code = self._end(process)
                    failure = SimulationError(f"the process of the run ended with exit code {code}")
                    process = self._start()
                with self._lock:
                    if not self._killed:
                        self._on_end(task, failure)
                self._compiled.set()
        finally:
            self._compiled.set()
            self._end(process)

    def _start(self) -> Process:
        with self._lock:
            process = Process(self._jobs)
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
        process.send(Placed(task))
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
        """Ask the runs under way to stop soon."""
        self._compiled.set()
        for process in list(self._processes):
            process.stop()

    def _kill(self) -> None:
        """End every process at once; one that another thread starts meanwhile is ended by that (`_start`)."""
        self._killed = True
        self._compiled.set()
        for process in list(self._processes):
            process.kill()


PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from fredsim.runs.processes.worker import main; main(int(sys.argv[1]))"
)


class Process:
    """One process, of `jobs` in all, that does tasks."""

    def __init__(self, jobs: int) -> None:
        """Start the process in a session of its own, so that a Ctrl-C at the terminal does not reach it."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(jobs), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._sending = threading.Lock()
        self.stopped = False

    def send(self, message: object) -> None:
        """Send a task, or STOP. Raises OSError if the process has ended."""
        assert self._process.stdin is not None
        with self._sending:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()

    def receive(self) -> Any:
        """Return the next message. Raises EOFError, or pickle.UnpicklingError, if the process has ended."""
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def stop(self) -> None:
        """Ask the process to stop its run soon."""
        if not self.stopped:
            self.stopped = True
            with suppress(OSError):  # it has ended by itself
                self.send(STOP)

    def kill(self) -> None:
        """End the process at once."""
        if self._process.poll() is None and hasattr(os, "killpg"):  # it may have forked another
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()

    def close(self) -> int:
        """End the process by closing its input, and return its exit code."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        return self._process.wait()
