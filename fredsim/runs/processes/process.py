"""Another process that does tasks: it is sent each as a pickle, and sends back callbacks and how the task ended.

These are plain processes with pipes, not `multiprocessing`: a script need not guard its main module, and a process ends
when the one that started it has ended, however that came.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import IO, Any, Protocol

from fredsim.errors import SimulationError
from fredsim.runs.processes.observer import Observer
from fredsim.runs.processes.worker import STOP

__all__ = ["Process", "ProcessTask", "Started", "ended_early"]

#: What is behind the signals that end a process which nobody meant to end.
CRASHES = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"}


class ProcessTask(Protocol):
    """A task for another process: an object that is pickled and sent to it."""

    @property
    def alone(self) -> bool:
        """Whether the task needs a process that has done nothing else, and does nothing else afterwards."""

    @property
    def own(self) -> Set[str]:
        """The names of the user's modules whose code it runs."""

    def warm_up(self) -> None:
        """Load what tasks like this one need and all of them can share; never import a user's module."""

    def do(self, observer: Observer, stop: Callable[[], bool], threads: int | None = None) -> Exception | None:
        """Do the task on `threads` threads, calling the observer; return why it failed, or None."""


class Process:
    """A process that does one task after another, and ends when it can read no further one."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._sending = threading.Lock()
        self._stopped = False

    def send(self, message: object) -> None:
        """Send a task (fredsim.runs.processes.worker.Placed), or STOP. Raises OSError if the process has ended."""
        with self._sending:
            pickle.dump(message, self._outgoing)
            self._outgoing.flush()

    def receive(self) -> Any:
        """Return the next message. Raises EOFError, OSError or pickle.UnpicklingError if the process has ended."""
        return pickle.load(self._incoming)

    def stop(self) -> None:
        """Ask the process to stop its task soon."""
        if not self._stopped:
            self._stopped = True
            with suppress(OSError, ValueError):  # it has ended, or was closed meanwhile
                self.send(STOP)

    def kill(self) -> None:
        """End the process at once, and every process that it has started."""
        raise NotImplementedError

    def close(self) -> int:
        """End the process, if it has not ended by itself, and return its exit code."""
        for pipe in (self._outgoing, self._incoming):
            with suppress(OSError):
                pipe.close()
        return 0


PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from fredsim.runs.processes.worker import main; main()"


class Started(Process):
    """A process that is started anew."""

    def __init__(self) -> None:
        """Start it in a session of its own, so that a Ctrl-C at the terminal does not reach it."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(self._process.stdout, self._process.stdin)

    def kill(self) -> None:
        """End the process at once, and every process that it has started."""
        if self._process.poll() is None and hasattr(os, "killpg"):
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()

    def close(self) -> int:
        """End the process, if it has not ended by itself, and return its exit code."""
        super().close()
        return self._process.wait()


def ended_early(code: int, own: Iterable[str] = ()) -> SimulationError:
    """Return the error of a run whose process ended with an exit code, −n by the signal n; `own`: the user's modules.

    A process that is sent no task any more ends with the code 1.
    """
    what = f"the process of the run ended with exit code {code}"
    if code < 0:
        name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")  # or a real-time signal
        why = "compiled code has crashed" if name in CRASHES else "somebody has killed it"
        why = "killed, as the system does where memory runs out" if name == "SIGKILL" else why
        what += f" ({name}: {why})"
    files = [f"{name} ({file})" if (file := _file_of(name)) else name for name in sorted(own)]
    return SimulationError(f"{what}; it was running code of yours: {', '.join(files)}" if files else what)


def _file_of(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__file__", None) or "")
