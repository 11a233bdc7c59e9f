"""The workers of a live run: which of them does which client's work, and what becomes of it when one is lost."""

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
from fredsim.simulation.live import Done, Stopped, Work

__all__ = ["START_SECONDS", "DaskCrew"]

AHEAD = 2  # works that a worker has at once: one is sent while it computes the other
LOOK_SECONDS = 0.5  # between two looks at which workers there are
WAIT_SECONDS = 60.0  # for a worker, where there is none
START_SECONDS = 300.0  # for one that loads the data and compiles
TRIES = 5  # to compare two clocks


class Station:
    """One worker: a thread that sends it works, and takes what comes back."""

    def __init__(self, crew: DaskCrew, address: str, actor: Any, offset: int) -> None:
        """Take the actor, and what its clock is behind ours, in nanoseconds."""
        self.address, self.lost = address, False
        self.waiting: deque[Work] = deque()  # under the crew's lock
        self.sent: deque[tuple[Work, Any]] = deque()
        self._crew, self._actor, self._offset = crew, actor, offset
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def load(self) -> int:
        """How many works it has."""
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
                        work = self.waiting[0]  # it stays there where the worker has gone: Dask says so here already
                        sent = self._actor.compute(work.client, work.number, work.ticket, work.params, work.rate)
                        self.sent.append((self.waiting.popleft(), sent))
                    work, future = self.sent[0]
                answer = future.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                continue
            except Exception as error:  # of any kind: the worker has gone, or fails by itself
                if self._over():
                    return
                crew.lose(self, f"{type(error).__name__}: {error}")
                return
            received = time.monotonic_ns()
            if isinstance(answer, FredsimError):  # any worker would fail at it
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
            crew.arrived.put(Done(work, push, losses, finite, size, before, *times, self.address))


class DaskCrew:
    """The workers of a Dask cluster, used in a `with` statement."""

    def __init__(
        self, cluster: Cluster, make: Callable[[str], Any], note: Callable[[str], None], stop: Callable[[], bool]
    ) -> None:
        """Take the cluster, what makes a LiveWorker at an address (an actor), and who is told of what happens."""
        self._cluster, self._make, self._note, self._stop = cluster, make, note, stop
        self.changed = threading.Condition()
        self.closed = False
        #: Why a work cannot be done, by any worker.
        self.failure: FredsimError | None = None
        self.arrived: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._stations: dict[str, Station] = {}
        self._met: dict[str, threading.Thread] = {}  # what starts each worker that there is, or has started it
        self._homeless: deque[Work] = deque()  # works that no worker has
        self._under_way: dict[int, int] = {}  # the tickets of the works that count, by client
        self._looked = -math.inf
        #: Works that were under way at a worker that was lost, and were done again; and workers that there ever were.
        self.redone = self.workers = 0
        self._begun = False

    def __enter__(self) -> DaskCrew:
        """Take up the workers that there are. Raises ClusterError where one of them cannot compute."""
        self._look()
        while self._starting() and not self._stop():
            time.sleep(0.01)
            self._look()  # one that has gone meanwhile never starts
        if self.failure is not None:
            raise self.failure
        self._begun = True
        return self

    def __exit__(self, *error: object) -> None:
        """Let the threads end."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def begin(self, work: Work) -> None:
        """Give a work to the worker that has the fewest; what its client did before is given up."""
        with self.changed:
            before = self._under_way.get(work.client)
            self._under_way[work.client] = work.ticket
            if before is not None:
                for station in self._stations.values():
                    station.waiting = deque(other for other in station.waiting if other.ticket != before)
            self._give(work)

    def _give(self, work: Work) -> None:
        if not self._stations:
            self._homeless.append(work)
            return
        min(self._stations.values(), key=lambda station: station.load).waiting.append(work)
        self.changed.notify_all()

    def next(self, seconds: float | None) -> Done | None:
        """Return the next work that is done and was not given up; see fredsim.simulation.live.Crew.

        Raises Stopped, too; ClusterError where there is no worker for too long, SimulationError where a work cannot be
        done.
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
                if self._under_way.get(done.work.client) == done.work.ticket:
                    del self._under_way[done.work.client]
                    return done
        raise Stopped

    def _look(self) -> None:
        """Take up new workers, and give up those that have gone, where the last look is a while ago."""
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
        """Let a worker load the data and compile; the run goes on meanwhile."""
        thread = threading.Thread(target=self._add, args=(address,), daemon=True)
        thread.start()
        return thread

    def _starting(self) -> bool:
        """Return whether a worker is being started."""
        return any(start.is_alive() for start in list(self._met.values()))

    def _add(self, address: str) -> None:
        if not self._cluster.fits(address):
            self._note(f"{self._cluster.misfit(address)}; it gets no work")
            return
        try:
            actor = self._make(address)
            failure, _, _ = actor.ready().result(timeout=START_SECONDS)
            offset = 0 if failure else _offset(actor)
        except Exception as error:  # of any kind: the worker has gone, or fails by itself
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
        """Give the works of a worker that is lost to others."""
        with self.changed:
            if station.lost:
                return
            station.lost = True
            self._stations.pop(station.address, None)
            self._met.pop(station.address, None)  # where it is there yet, it is started again
            works = [work for work, _ in station.sent] + list(station.waiting)
            works = [work for work in works if self._under_way.get(work.client) == work.ticket]
            self.redone += len(works)
            many = "1 work is" if len(works) == 1 else f"{len(works)} works are"
            self._note(f"the worker {station.address} was lost ({why}); {many} done again elsewhere")
            for work in works:
                self._give(work)
            self.changed.notify_all()


def _offset(actor: Any) -> int:
    """Return what a worker's clock is behind ours, in nanoseconds, by the quickest of a few answers."""
    found: list[tuple[int, int]] = []
    for _ in range(TRIES):
        sent = time.monotonic_ns()
        theirs = actor.clock().result(timeout=START_SECONDS)
        took = time.monotonic_ns() - sent
        found.append((took, sent + took // 2 - theirs))
    return min(found)[1]
