"""The workers of a live run: assigns clients' works to them, and reassigns those of a worker that is lost.

A work is what a client does between two pushes; its ticket is its number among all works of the run.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from fredsim.errors import ClusterError, FredsimError
from fredsim.runs.cluster import Cluster
from fredsim.runs.live_wire import unpack
from fredsim.simulation.live import ClientTask, StopRequested, TaskResult

__all__ = ["START_SECONDS", "DaskCrew"]

AHEAD = 2  # works sent to a worker at once: one travels while it computes the other
LOOK_SECONDS = 0.5  # between two checks of which workers there are
WAIT_SECONDS = 60.0  # how long to wait for a worker if there is none
START_SECONDS = 300.0  # how long a worker may take to load the data and compile
TRIES = 5  # how often two clocks are compared


class Station:
    """The local end of one worker: a thread that sends it works and receives what it computed."""

    def __init__(self, crew: DaskCrew, address: str, actor: Any, offset: int) -> None:
        """Take the actor, and by how much its clock is behind ours, in nanoseconds."""
        self.address, self.lost = address, False
        self.waiting: deque[ClientTask] = deque()  # not sent yet; this and `sent` are guarded by the crew's lock
        self.sent: deque[tuple[ClientTask, Any]] = deque()  # each with its future
        self._crew, self._actor, self._offset = crew, actor, offset
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def load(self) -> int:
        """How many works the worker has, sent or waiting."""
        return len(self.waiting) + len(self.sent)

    def _over(self) -> bool:
        return self.lost or self._crew.closed

    def _serve(self) -> None:
        crew = self._crew
        while True:
            try:
                with crew.changed:
                    while not (self.waiting or self.sent or self._over()):
                        crew.changed.wait()
                    if self._over():
                        return
                    while self.waiting and len(self.sent) < AHEAD:
                        work = self.waiting[0]  # removed only below: the call raises already if the worker has gone
                        sent = self._actor.compute(work.client, work.number, work.ticket, work.params, work.rate)
                        self.sent.append((self.waiting.popleft(), sent))
                    work, future = self.sent[0]
                answer = future.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                continue
            except Exception as error:  # of any type: the worker has gone, or is broken
                if self._over():
                    return
                crew.lose(self, f"{type(error).__name__}: {error}")
                return
            received = time.monotonic_ns()
            if isinstance(answer, FredsimError):  # any worker would fail at this work
                crew.failure = answer
                return
            push, losses, finite, size, before, began, done = answer
            if push.dtype == np.uint8:
                push = unpack(push)
            with crew.changed:
                if self._over():
                    return
                self.sent.popleft()
            times = began + self._offset, min(done + self._offset, received), received
            crew.arrived.put(TaskResult(work, push, losses, finite, size, before, *times, self.address))


class DaskCrew:
    """The workers of a Dask cluster, used in a `with` statement."""

    def __init__(
        self, cluster: Cluster, make: Callable[[str], Any], note: Callable[[str], None], stop: Callable[[], bool]
    ) -> None:
        """Take the cluster; `make` creates a LiveWorker actor at an address, `note` shows a message, `stop` asks to."""
        self._cluster, self._make, self._note, self._stop = cluster, make, note, stop
        self.changed = threading.Condition()  # the crew's lock; notified when works are assigned, or a worker is lost
        self.closed = False
        #: The error of a work that no worker can do.
        self.failure: FredsimError | None = None
        self.arrived: queue.SimpleQueue[TaskResult] = queue.SimpleQueue()
        self._stations: dict[str, Station] = {}  # the workers that have started, by address
        self._met: dict[str, threading.Thread] = {}  # by address of every present worker, the thread that starts it
        self._homeless: deque[ClientTask] = deque()  # works that no worker has
        self._under_way: dict[int, int] = {}  # by client, the ticket of the work that it is to push next
        self._looked = -math.inf  # the time of the last check of which workers there are
        #: How many works of lost workers were done again; and how many workers ever started.
        self.redone = self.workers = 0
        self._begun = False

    def __enter__(self) -> DaskCrew:
        """Start the workers that there are. Raises ClusterError if one of them cannot compute."""
        self._look()
        while self._starting() and not self._stop():
            time.sleep(0.01)
            self._look()  # forgets a worker that has gone meanwhile, which would never start
        if self.failure is not None:
            raise self.failure
        self._begun = True
        return self

    def __exit__(self, *error: object) -> None:
        """Let the threads end."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def begin(self, task: ClientTask) -> None:
        """Give a task to the worker that has the fewest; an earlier task of the same client is given up."""
        with self.changed:
            before = self._under_way.get(task.client)
            self._under_way[task.client] = task.ticket
            if before is not None:
                for station in self._stations.values():
                    station.waiting = deque(other for other in station.waiting if other.ticket != before)
            self._give(task)

    def _give(self, work: ClientTask) -> None:
        if not self._stations:
            self._homeless.append(work)
            return
        min(self._stations.values(), key=lambda station: station.load).waiting.append(work)
        self.changed.notify_all()

    def next(self, seconds: float | None) -> TaskResult | None:
        """Return the next work that is done and was not given up; see fredsim.simulation.live.Crew.

        Raises StopRequested; ClusterError if there is no worker for too long; SimulationError if a work cannot be done.
        """
        limit = None if seconds is None else time.monotonic() + seconds
        alone = time.monotonic()
        while not self._stop():
            if self.failure is not None:
                raise self.failure
            now = time.monotonic()
            self._look()
            if self._stations or self._starting():
                alone = now
            elif now - alone > WAIT_SECONDS:
                raise ClusterError(f"no worker for {WAIT_SECONDS:.0f} s; start some, and give the command again")
            wait = LOOK_SECONDS if limit is None else min(LOOK_SECONDS, limit - now)
            if wait <= 0:
                return None
            try:
                done = self.arrived.get(timeout=wait)
            except queue.Empty:
                continue
            with self.changed:
                if self._under_way.get(done.task.client) == done.task.ticket:
                    del self._under_way[done.task.client]
                    return done
        raise StopRequested

    def _look(self) -> None:
        """Start new workers, and give up those that have gone, if LOOK_SECONDS have passed since the last check."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        try:
            found = self._cluster.workers()
        except OSError as error:
            raise ClusterError(
                f"the scheduler was lost ({error}); the same command goes on from the checkpoint"
            ) from None
        with self.changed:
            for address in [address for address in self._stations if address not in found]:
                self.lose(self._stations[address], "it has gone")
            self._met = {address: self._met.get(address) or self._start(address) for address in found}
        self._looked = time.monotonic()

    def _start(self, address: str) -> threading.Thread:
        """Start a thread in which a worker loads the data and compiles, while the run goes on."""
        thread = threading.Thread(target=self._add, args=(address,), daemon=True)
        thread.start()
        return thread

    def _starting(self) -> bool:
        """Return whether some worker is still being started."""
        return any(start.is_alive() for start in list(self._met.values()))

    def _add(self, address: str) -> None:
        if not self._cluster.fits(address):
            self._note(f"{self._cluster.misfit(address)}; it gets no work")
            return
        try:
            actor = self._make(address)
            failure, _, _ = actor.ready().result(timeout=START_SECONDS)
            offset = 0 if failure else _offset(actor)
        except Exception as error:  # of any type: the worker has gone, or is broken
            self._note(f"the worker {address} does not start ({type(error).__name__}: {error})")
            return
        with self.changed:
            if failure is None and not self.closed:
                self._stations[address] = Station(self, address, actor, offset)
                self.workers += 1
                while self._homeless:
                    self._give(self._homeless.popleft())
            elif self._begun and self.workers:
                self._note(f"the worker {address} gets no work: {failure}")
            else:
                self.failure = ClusterError(f"the worker {address}: {failure}")

    def lose(self, station: Station, why: str) -> None:
        """Give the works of a lost worker to other workers."""
        with self.changed:
            if station.lost:
                return
            station.lost = True
            self._stations.pop(station.address, None)
            self._met.pop(station.address, None)  # if it still exists, it is started again
            works = [work for work, _ in station.sent] + list(station.waiting)
            works = [work for work in works if self._under_way.get(work.client) == work.ticket]
            self.redone += len(works)
            many = "1 work is" if len(works) == 1 else f"{len(works)} works are"
            self._note(f"the worker {station.address} was lost ({why}); {many} done again elsewhere")
            for work in works:
                self._give(work)
            self.changed.notify_all()


def _offset(actor: Any) -> int:
    """Return by how much a worker's clock is behind ours, in nanoseconds, from the fastest of a few round trips."""
    found: list[tuple[int, int]] = []
    for _ in range(TRIES):
        sent = time.monotonic_ns()
        theirs = actor.clock().result(timeout=START_SECONDS)
        took = time.monotonic_ns() - sent
        found.append((took, sent + took // 2 - theirs))
    return min(found)[1]
