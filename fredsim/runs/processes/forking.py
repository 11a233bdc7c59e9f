"""Forks processes from one that has imported fredsim and loaded the data, but never a user's module.

That process, the server, waits between runs. So a process that has done nothing else costs a tenth of a second
or two, and all of them share the memory of the data. The server starts no thread and touches no device, since these do
not survive a fork; threads of OpenBLAS and jemalloc do no harm, which provide for forks. On systems where a process
cannot be forked safely, each is started anew.

A process and the one that it works for have two connections: the channel, through which tasks and callbacks go, and the
leash. When the leash is let go of at the other end, because that process has ended, too, the server kills the process;
when the process ends, the server sends its exit code along the leash.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from fredsim.errors import SimulationError
from fredsim.plugins.exits import end_process
from fredsim.runs.processes.process import Process, ProcessTask, Started
from fredsim.runs.processes.worker import Placed, be_silent, serve

__all__ = ["in_fork", "main", "new_process", "start_early"]

#: Whether processes can be forked, safely enough: on macOS, libraries of the system cannot go on in a forked process.
FORKS = sys.platform == "linux"
PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from fredsim.runs.processes.forking import main; main()"

#: The beginnings of the names of variables that libraries read when they are imported.
READ_AT_IMPORT = (
    "CUDA_", "FREDSIM_EMULATE", "KMP_", "LD_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_",
)  # fmt: skip

#: The limits of a process that it passes on: on the processor's time, memory, and the size and number of files.
LIMITS = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_STACK")

_servers: list[Server] = []  # the one that waits, if any
_retired: list[Server] = []  # that have not ended yet


def new_process() -> Process:
    """Return a process that has done nothing, to which a task must be sent at once."""
    return _server().fork() if FORKS else Started()


def start_early(task: ProcessTask) -> None:
    """Let what processes for tasks like this one need be loaded, while this process goes on."""
    if FORKS:
        _server().warm_up(task)


def in_fork(ask: Callable[[], bool]) -> bool:
    """Return the answer to a question that a fork of this process asks and then ends."""
    if (process := _fork()) == 0:
        try:
            end_process(ask())
        finally:
            end_process(0)
    return os.waitpid(process, 0)[1] != 0


def _fork() -> int:
    with warnings.catch_warnings(action="ignore"):  # Python's, JAX's: of threads; OpenBLAS ends its own
        return os.fork()


def _server() -> Server:
    """Return the server that waits; a new one if it has died, or was started in another environment."""
    _retired[:] = [server for server in _retired if not server.has_ended()]
    for server in list(_servers):
        if not server.has_ended() and server.surroundings == _surroundings():
            return server
        server.retire()
        with suppress(ValueError):  # another thread has done so
            _servers.remove(server)
            _retired.append(server)
    _servers.append(Server())
    return _servers[0]


def _surroundings() -> object:
    """Return what a process takes over from the one that starts it, and `Placed` cannot change any more."""
    import resource  # not everywhere that Python is

    limits = [resource.getrlimit(getattr(resource, name)) for name in LIMITS]
    read = {name: os.environ[name] for name in os.environ if name.startswith(READ_AT_IMPORT)}
    return os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), limits, read


class Server:
    """The process that forks others, as seen from the one that they work for."""

    def __init__(self) -> None:
        """Start it in a session of its own, so that a Ctrl-C at the terminal does not reach it."""
        self.surroundings = _surroundings()
        self._requests, its = socket.socketpair()
        with its:
            command, its_input = [sys.executable, "-c", PROGRAM, *sys.path], its.fileno()
            self._process = subprocess.Popen(
                command, stdin=its_input, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def fork(self) -> Process:
        """Return a new process."""
        with ExitStack() as undo:
            channel, leash = self._request(undo, 2)
            undo.pop_all()
        return Forked(channel, leash)

    def warm_up(self, task: ProcessTask) -> None:
        """Let it load what tasks like this one share."""
        with ExitStack() as opened:
            (channel,) = self._request(opened, 1)
            with suppress(OSError), channel.makefile("wb") as outgoing:  # if it has died, that will show later
                pickle.dump(Placed(task), outgoing)

    def _request(self, opened: ExitStack, count: int) -> list[socket.socket]:
        """Send it `count` connections; return our ends of them, which `opened` closes."""
        with ExitStack() as its:
            pairs = [socket.socketpair() for _ in range(count)]
            for our, other in pairs:
                opened.enter_context(our)
                its.enter_context(other)
            socket.send_fds(self._requests, [b"?"], [other.fileno() for _, other in pairs])
        return [our for our, _ in pairs]

    def retire(self) -> None:
        """Let it end as soon as the processes that it has forked have ended."""
        self._requests.close()

    def kill(self) -> None:
        """End it at once."""
        self.retire()
        self._process.kill()
        self._process.wait()


def _leave_servers(leave: Callable[[Server], None]) -> None:
    for servers in (_servers, _retired):
        while servers:
            leave(servers.pop())


atexit.register(_leave_servers, Server.kill)
if FORKS:  # a process that a user forks from this one needs its own
    os.register_at_fork(after_in_child=partial(_leave_servers, Server.retire))


class Forked(Process):
    """A process that the server forks."""

    def __init__(self, channel: socket.socket, leash: socket.socket) -> None:
        super().__init__(channel.makefile("rb"), channel.makefile("wb"))
        self._channel, self._leash, self._code = channel, leash, -int(signal.SIGKILL)

    def kill(self) -> None:
        """End the process at once, and every process that it has started."""
        with suppress(OSError):  # it was let go of before, or the server has died
            self._leash.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # nobody waits for its messages any more

    def close(self) -> int:
        """End the process, if it has not ended by itself, and return its exit code."""
        self.kill()
        with suppress(OSError, ValueError):  # the server has died, or this was closed before
            self._code = int(self._leash.recv(16))
        super().close()
        self._channel.close()
        self._leash.close()
        return self._code


def main() -> None:
    """Be the server: fork a process for each request that comes in through the standard input."""
    requests = socket.socket(fileno=os.dup(0))
    be_silent()
    Forks(requests).run()


class Forks:
    """The server itself: the processes that it has forked and that have not ended, and how it forks another."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._processes: dict[socket.socket, int] = {}  # their numbers, by leash
        self._woken, self._waking = socket.socketpair()
        self._waking.setblocking(False)
        self._waiting = selectors.DefaultSelector()
        for connection in (self._requests, self._woken):
            self._waiting.register(connection, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only has to wake this process up

    def run(self) -> None:
        """Serve requests until no more can come and no process is left."""
        expected = True
        while expected or self._processes:
            ready: list[Any] = [key.fileobj for key, _ in self._waiting.select()]
            for connection in ready:
                if connection is self._requests:
                    expected = self._serve_request()
                elif connection is self._woken:
                    connection.recv(64)
                else:
                    self._waiting.unregister(connection)
                    _kill(self._processes[connection])
            for leash, process in list(self._processes.items()):
                self._reap(leash, process)

    def _serve_request(self) -> bool:
        """Warm up for a task; if its connection comes with a leash, fork a process for it. Return whether one came."""
        word, descriptors, *_ = socket.recv_fds(self._requests, 1, 2)
        if not word:
            self._waiting.unregister(self._requests)
            return False
        channel, *leashes = [socket.socket(fileno=one) for one in descriptors]
        with channel, channel.makefile("rb") as incoming, ExitStack() as unused:
            for leash in leashes:
                unused.enter_context(leash)
            try:
                task: Placed = pickle.load(incoming)
            except (EOFError, OSError, pickle.UnpicklingError):  # the process that asked for it has ended
                return True
            task.warm_up()
            gc.collect()
            gc.freeze()  # a collection in a forked process would touch all this memory, and so copy it
            if leashes:
                self._fork(lambda: serve(incoming, channel.makefile("wb"), task), channel, *leashes)
                unused.pop_all()
        return True

    def _fork(self, do: Callable[[], object], channel: socket.socket, leash: socket.socket) -> None:
        """Fork a process that does something and then ends; if that fails, say so through its channel."""
        try:
            process = _fork()
        except OSError as error:
            failure = SimulationError(f"no process can be forked ({error.strerror}); end other programs")
            with leash, suppress(OSError):
                channel.sendall(pickle.dumps(("done", failure)))
            return
        if process:
            self._processes[leash] = process
            self._waiting.register(leash, selectors.EVENT_READ)
            return
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._waiting.close()
            for connection in (self._requests, self._woken, self._waking, *self._processes, leash):
                connection.close()
            do()
        except BaseException:  # the other side learns the exit code
            traceback.print_exc()
        end_process(1)

    def _reap(self, leash: socket.socket, process: int) -> None:
        """If a process has ended, send its exit code along the leash."""
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        _kill(process)  # those that it has started
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with suppress(OSError):
            leash.send(str(code).encode())
        with suppress(KeyError):
            self._waiting.unregister(leash)
        leash.close()
        del self._processes[leash]


def _kill(process: int) -> None:
    """Kill a forked process, which has not been waited for, and every process that it has started."""
    for kill in (os.killpg, os.kill):  # at first it has no group of its own
        with suppress(ProcessLookupError):
            kill(process, signal.SIGKILL)
