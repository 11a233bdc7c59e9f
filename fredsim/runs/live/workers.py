"""The workers of a live run: assigns clients' tasks to them, and reassigns those of a worker that is lost.

A task is what a client does between two pushes; its `task_id` is its number among those of all clients.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fredsim.errors import ClusterError, FredsimError, shown
from fredsim.plugins.guarded import MOST_COUNTED
from fredsim.runs.live.wire import unpack
from fredsim.runs.live.worker import Answer, Basis
from fredsim.runs.many.cluster import ATTEMPTS, Cluster
from fredsim.simulation.paths.live_pushes import ClientTask, TaskResult
from fredsim.simulation.paths.loop import StopRequested

__all__ = ["START_SECONDS", "DaskWorkers"]

PIPELINED = 2  # tasks sent to a worker at once: one travels while it computes the other
CHECK_SECONDS = 0.5  # between two checks of which workers there are
WAIT_SECONDS = 60.0  # how long to wait for a worker if there is none
START_SECONDS = 300.0  # how long a worker may take to load the data and compile
CLOCK_READINGS = 5  # how often two clocks are compared
SLOW_SECONDS = 60.0  # after so long a task is shown, if it also takes
SLOW = 10  # times as long as any that its worker has done
LATEST = 2**62  # no clock of a machine reaches it in nanoseconds


class Connection:
    """The connection to one worker: a thread that sends it tasks and receives the results."""

    def __init__(self, pool: DaskWorkers, address: str, actor: Any, offset: int) -> None:
        """Take the actor, and by how much its clock is behind this machine's, in nanoseconds."""
        self.address, self.lost = address, False
        self.waiting: deque[ClientTask] = deque()  # tasks that are not sent yet
        self.sent: deque[tuple[ClientTask, Any]] = deque()  # tasks that are sent, each with its future
        # Both are guarded by the pool's lock.
        self._pool, self._actor, self._clock_offset = pool, actor, offset
        # When the worker ended its last task, and the most seconds that one took; the task that was shown as slow.
        self._since, self._longest, self._slow = -math.inf, 0.0, -1
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def load(self) -> int:
        """The number of tasks assigned to the worker, sent or waiting."""
        return len(self.waiting) + len(self.sent)

    def _is_closed(self) -> bool:
        return self.lost or self._pool.closed

    def _run(self) -> None:
        pool = self._pool
        while True:
            try:
                with pool.changed:
                    while not (self.waiting or self.sent or self._is_closed()):
                        pool.changed.wait()
                    if self._is_closed():
                        return
                    while self.waiting and len(self.sent) < PIPELINED:
                        task = self.waiting[0]  # removed only below, since the call raises if the worker has gone
                        if pool.is_current(task):
                            sent = self._actor.compute(task.client, task.number, task.task_id, task.params, task.rate)
                            self.sent.append((task, sent))
                        self.waiting.popleft()
                    if not self.sent:  # all were given up
                        continue
                    task, future = self.sent[0]
                answer = future.result(timeout=CHECK_SECONDS)
            except TimeoutError:
                self._note_slow(task)
                continue
            except Exception as error:  # of any type: the worker has gone, or is broken
                if self._is_closed():
                    return
                pool.drop(self, f"{type(error).__name__}: {error}")
                return
            received = time.monotonic_ns()
            if isinstance(answer, FredsimError):  # any worker would fail at this task
                pool.failure = ClusterError(f"{answer}; it was at the worker {self.address}")
                return
            try:
                push, losses, finite, size, before, began, done = checked_answer(
                    answer, pool.basis.size, pool.samples, compresses=pool.compresses
                )
            except ValueError as error:  # what it computes next would be no better
                pool.failure = ClusterError(f"the worker {self.address} {error}; restart it")
                return
            with pool.changed:
                if self._is_closed():
                    return
                self.sent.popleft()
            self._longest, self._since = max(self._longest, self._took(task)), time.monotonic()
            done = max(0, min(done + self._clock_offset, received))  # clocks of two machines drift apart
            began = max(0, min(began + self._clock_offset, done))
            pool.arrived.put(TaskResult(task, push, losses, finite, size, before, began, done, received, self.address))

    def _took(self, task: ClientTask) -> float:
        """Return for how many seconds the worker has been at its first task: since that was assigned, or came first."""
        return time.monotonic() - max(self._since, task.assigned / 1e9)

    def _note_slow(self, task: ClientTask) -> None:
        """Show, once for each task, that the worker has been at it for much longer than at any before.

        Dask keeps a worker whose computation hangs.
        """
        took = self._took(task)
        if took > max(SLOW_SECONDS, SLOW * self._longest) and self._slow != task.task_id:
            self._slow = task.task_id
            what = f"has been at task {task.number} of client {task.client} for {took:.0f} s"
            self._pool.note(
                f"the worker {self.address} {what}; if it hangs, end its process: another one does the task"
            )


class DaskWorkers:
    """The workers of a Dask cluster, used in a `with` statement."""

    def __init__(
        self,
        cluster: Cluster,
        make: Callable[[str], Any],
        note: Callable[[str], None],
        stop: Callable[[], bool],
        basis: Basis,
        samples: int,
        *,
        compresses: bool,
    ) -> None:
        """Take the cluster and three callbacks.

        `make` creates a LiveWorker actor at a worker's address, `note` shows a message, `stop` returns whether to stop.
        `basis` is what all must compute from, `samples` how many losses a task has; `compresses` says whether workers
        compress pushes.
        """
        self.basis, self.samples, self.compresses = basis, samples, compresses
        self._cluster, self._make, self.note, self._stop = cluster, make, note, stop
        self.changed = threading.Condition()  # the pool's lock; notified when tasks are assigned, or a worker is lost
        self.closed = False
        #: What ends the run: a task that no worker can do, or a worker that cannot compute.
        self.failure: ClusterError | None = None
        self.arrived: queue.SimpleQueue[TaskResult] = queue.SimpleQueue()
        self._connections: dict[str, Connection] = {}  # the workers that have started, by address
        self._start_threads: dict[str, threading.Thread] = {}  # that start the present workers, by address
        self._unassigned: deque[ClientTask] = deque()  # tasks that wait for a worker
        self._current_task: dict[int, int] = {}  # the task_id of the task that a client is to push next, by client
        self._noted: set[str] = set()  # messages that are shown once
        self._last_check = -math.inf  # the time of the last check of which workers there are
        #: How many tasks of lost workers were done again; and how many workers there were at once, at most.
        self.redone = self.workers = 0
        self._losses: Counter[int] = Counter()  # how many workers were lost while they computed a task, by task_id
        self._entered = False

    def __enter__(self) -> DaskWorkers:
        """Start the workers that there are. Raises ClusterError if one of them cannot compute."""
        self._check_workers()
        while self._starting() and not self._stop():
            time.sleep(0.01)
            self._check_workers()  # forgets workers that have gone meanwhile, which would never start
        if self.failure is not None:
            raise self.failure
        self._entered = True
        return self

    def __exit__(self, *error: object) -> None:
        """Ask the connections' threads to end."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def begin(self, task: ClientTask) -> None:
        """Assign a task to the worker that has the fewest; an earlier task of the same client is given up."""
        with self.changed:
            self._current_task[task.client] = task.task_id
            self._assign(task)

    def is_current(self, task: ClientTask) -> bool:
        """Return whether a task is what its client is to push next: if it has not been pushed, or given up."""
        return self._current_task.get(task.client) == task.task_id

    def _assign(self, task: ClientTask) -> None:
        if not self._connections:
            self._unassigned.append(task)
            return
        task = replace(task, assigned=time.monotonic_ns())
        min(self._connections.values(), key=lambda connection: connection.load).waiting.append(task)
        self.changed.notify_all()

    def next(self, seconds: float | None) -> TaskResult | None:
        """Return the next task that is done and was not given up; see fredsim.simulation.paths.live_pushes.WorkerPool.

        Raises StopRequested; ClusterError if there is no worker for too long, or if a task cannot be done.
        """
        limit = None if seconds is None else time.monotonic() + seconds
        last_seen = time.monotonic()
        while not self._stop():
            if self.failure is not None:
                raise self.failure
            now = time.monotonic()
            self._check_workers()
            if self._connections or self._starting():
                last_seen = now
            elif now - last_seen > WAIT_SECONDS:
                raise ClusterError(f"no worker for {WAIT_SECONDS:.0f} s; start some, and give the command again")
            wait = CHECK_SECONDS if limit is None else min(CHECK_SECONDS, limit - now)
            if wait <= 0:
                return None
            try:
                done = self.arrived.get(timeout=wait)
            except queue.Empty:
                continue
            with self.changed:
                if self.is_current(done.task):
                    del self._current_task[done.task.client]
                    return done
        raise StopRequested

    def _check_workers(self) -> None:
        """Start new workers, and give up those that have gone, if CHECK_SECONDS have passed since the last check."""
        if time.monotonic() - self._last_check < CHECK_SECONDS:
            return
        try:
            found = self._cluster.workers()
        except OSError as error:
            raise ClusterError(
                f"the scheduler was lost ({error}); the same command continues from the checkpoint"
            ) from None
        for silence in self._cluster.silent:
            if silence not in self._noted:
                self._noted.add(silence)
                self.note(f"{silence}; it gets no task")
        with self.changed:
            for address in [address for address in self._connections if address not in found]:
                self.drop(self._connections[address], "it has gone")
            before = self._start_threads
            self._start_threads = {address: before.get(address) or self._start(address) for address in found}
        self._last_check = time.monotonic()

    def _start(self, address: str) -> threading.Thread:
        """Start a thread in which a worker loads the data and compiles, during the run."""
        thread = threading.Thread(target=self._add, args=(address,), daemon=True)
        thread.start()
        return thread

    def _starting(self) -> bool:
        return any(start.is_alive() for start in list(self._start_threads.values()))

    def _add(self, address: str) -> None:
        if not self._cluster.fits(address):
            self.note(f"{self._cluster.misfit(address)}; it gets no task")
            return
        try:
            actor = self._make(address)
            found = actor.ready().result(timeout=START_SECONDS)
            failure = self.basis.difference(found) if isinstance(found, Basis) else str(found)
            offset = 0 if failure else _clock_offset(actor)
        except Exception as error:  # of any type: the worker has gone, or is broken
            if not self.closed:  # after an interrupt, Dask cancels what is still being started
                self.note(f"the worker {address} does not start ({type(error).__name__}: {error})")
            return
        with self.changed:
            if not failure and not self.closed:
                self._connections[address] = Connection(self, address, actor, offset)
                self.workers = max(self.workers, len(self._connections))
                while self._unassigned:
                    self._assign(self._unassigned.popleft())
            elif self._entered and self.workers:
                self.note(f"the worker {address} gets no task: {failure}")
            else:
                self.failure = ClusterError(f"the worker {address}: {failure}")

    def drop(self, connection: Connection, why: str) -> None:
        """Give the tasks of a lost worker to other workers."""
        with self.changed:
            if connection.lost:
                return
            connection.lost = True
            self._connections.pop(connection.address, None)
            self._start_threads.pop(connection.address, None)  # if it still exists, it is started again
            tasks = [task for task, _ in connection.sent] + list(connection.waiting)
            tasks = [task for task in tasks if self.is_current(task)]
            self.redone += len(tasks)
            many = "1 task is" if len(tasks) == 1 else f"{len(tasks)} tasks are"
            self.note(f"the worker {connection.address} was lost ({why}); {many} done again elsewhere")
            if connection.sent:
                self._count_loss(connection.sent[0][0], connection.address, why)
            for task in tasks:
                self._assign(task)
            self.changed.notify_all()

    def _count_loss(self, task: ClientTask, address: str, why: str) -> None:
        """Count a worker that was lost while it computed a task; after too many of them, the task is the cause."""
        self._losses[task.task_id] += 1
        if self._losses[task.task_id] >= ATTEMPTS and self.failure is None:
            self.failure = ClusterError(
                f"client {task.client}, its task {task.number}: {ATTEMPTS} workers were lost while they computed it; "
                f"the last, {address} ({why}); see whether it takes too much memory, or what ends their processes"
            )


def checked_answer(answer: Any, size: int, samples: int, *, compresses: bool) -> Answer:
    """Return a worker's answer, with its push (P,) decoded, if it is that of a task. Raises ValueError if it is not.

    Kernels rely on the shapes: `size` is P, `samples` the number of losses. `compresses` says whether workers compress
    pushes; only then they count bytes.
    """
    if not isinstance(answer, tuple | list) or len(answer) != 7:
        raise ValueError("sent something else than the outcome of a task")
    push, losses, *numbers = answer
    if isinstance(push, np.ndarray) and push.dtype == np.uint8 and push.ndim == 1:
        try:
            push = unpack(push)
        except Exception:  # of any type: bytes may be anything
            raise ValueError("sent a push that cannot be decoded") from None
    for what, array, dtype, shape in (("a push", push, "float32", (size,)), ("losses", losses, "float32", (samples,))):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
            is_array = isinstance(array, np.ndarray)
            found = f"{array.dtype}{list(array.shape)}" if is_array else type(array).__name__
            raise ValueError(f"sent {what} of {found}, not {dtype}{list(shape)}")
    if [type(number) for number in numbers] != [bool, int, int, int, int]:
        raise ValueError("sent something else than the numbers of a task")
    _, count, before, *times = numbers
    if not (1 if compresses else 0) <= count <= (MOST_COUNTED if compresses else 0):
        how = f"between 1 and {MOST_COUNTED}" if compresses else "0, as it compresses nothing"
        raise ValueError(f"sent {count} as the bytes of a compressed push, not a number {how}")
    if not 0 <= before < 2**64 or max(map(abs, times)) >= LATEST:
        raise ValueError("sent a fingerprint or a time of more than 64 bits")
    return np.ascontiguousarray(push), losses, *numbers


def _clock_offset(actor: Any) -> int:
    """Return by how much a worker's clock is behind this machine's, in ns, from the fastest of a few round trips.

    Raises ValueError if it sends no time.
    """
    found: list[tuple[int, int]] = []
    for _ in range(CLOCK_READINGS):
        sent = time.monotonic_ns()
        theirs = actor.clock().result(timeout=START_SECONDS)
        took = time.monotonic_ns() - sent
        if type(theirs) is not int:
            raise ValueError(f"its clock says {shown(theirs)}")
        found.append((took, sent + took // 2 - theirs))
    return min(found)[1]
