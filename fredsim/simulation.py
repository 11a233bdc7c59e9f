"""The event loop: who arrives, its gradient, the server's update, who goes on.

The loop knows no algorithm by name. An event is the arrival of one client's gradient; `iteration` counts events. What a
client's gradient is depends only on the parameters it fetched and its minibatch, so those of the next few arrivals are
computed together, as far as they come from different clients; how many changes no bit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.adapters import AdaptedDispatcher, AdaptedServer
from fredsim.backends import Engine
from fredsim.clients import SnapshotHoldings
from fredsim.models import Mlp
from fredsim.recorder import Recorder
from fredsim.sampling import Sampler

__all__ = ["Diverged", "Interval", "Length", "Outcome", "Simulation"]

Array = NDArray[np.float32]
Status = Literal["finished", "diverged", "interrupted"]

#: The gradients of one window should fit the last level of cache together.
WINDOW_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Length:
    """When a run ends: after so many iterations, or when the timestamp has reached so many updates."""

    iterations: int | None
    updates: int | None


@dataclass(frozen=True)
class Interval:
    """When a row is recorded: every so many iterations, or updates."""

    every: int
    in_updates: bool = False

    def due(self, iteration: int, timestamp: int, before: int) -> bool:
        """Return whether a row is due after an event that took the timestamp from `before` to `timestamp`."""
        if self.in_updates:
            return timestamp != before and timestamp % self.every == 0
        return iteration % self.every == 0


@dataclass(frozen=True)
class Outcome:
    """How a run ended. After a divergence, `iterations` events stand and the next one was not finite."""

    status: Status
    iterations: int
    params: Array
    seconds: float
    seconds_evaluation: float


class Diverged(Exception):  # noqa: N818  it reports an outcome, not an error
    """The update of this iteration gave a parameter that is not finite."""

    def __init__(self, iteration: int) -> None:
        super().__init__(iteration)
        self.iteration = iteration


class Simulation:
    """One pass over a run's events, from the initial parameters."""

    def __init__(
        self,
        *,
        model: Mlp,
        params: Array,
        engine: Engine,
        server: Any,
        dispatcher: Any,
        sampler: Sampler,
        clients: int,
        wait: bool,
        window: int | None,
        interval: Interval,
        recorder: Recorder,
        progress: Callable[[int, int], None],
        stop: Callable[[], bool],
    ) -> None:
        """Wire the parts and start the server; the dispatcher is started already. Raises SimulationError."""
        self._layout = model.layout
        self._engine = engine
        self._server = AdaptedServer(server, params, clients, model.layout, engine.compile_rule)
        self._dispatcher = AdaptedDispatcher(dispatcher, clients)
        self._sampler = sampler
        self._recorder = recorder
        self._interval = interval
        self._progress = progress
        self._stop = stop
        self._holdings = SnapshotHoldings(engine, params, clients, wait)
        self._numbers = np.zeros(clients, np.int64)  # how many gradients each client has begun
        self._order: deque[int] = deque()  # choices drawn ahead
        self._drawn = 0
        self._window = window or max(1, min(clients, WINDOW_BYTES // (4 * len(params))))
        self.iteration = 0
        self._seconds_evaluation = 0.0

    def run(self, length: Length) -> Outcome:
        """Run to the end and return how it ended. Raises Diverged, SimulationError."""
        begin = time.perf_counter()
        self._record()
        status: Status = "finished"
        while not self._over(length):
            if self._stop():
                status = "interrupted"
                break
            self._advance(self._limit(length))
            self._progress(self.iteration, self._server.timestamp)
        if self._recorder.rows[-1].iteration != self.iteration:
            self._record()
        seconds = time.perf_counter() - begin - self._seconds_evaluation
        return Outcome(status, self.iteration, self._server.params, seconds, self._seconds_evaluation)

    def _over(self, length: Length) -> bool:
        if length.iterations is not None and self.iteration >= length.iterations:
            return True
        return length.updates is not None and self._server.timestamp >= length.updates

    def _limit(self, length: Length) -> int:
        """Return how many events are sure to be part of the run: an event makes at most one update."""
        limits = [self._window]
        if length.iterations is not None:
            limits.append(length.iterations - self.iteration)
        if length.updates is not None:
            limits.append(length.updates - self._server.timestamp)
        return min(limits)

    def _advance(self, limit: int) -> None:
        """Compute the gradients of up to `limit` arrivals together, then let them arrive one by one."""
        clients = self._next_clients(limit)
        iterations = np.arange(self.iteration, self.iteration + len(clients))
        ids = np.array(clients)
        rows = self._sampler.rows(iterations, ids, self._numbers[ids])
        self._numbers[ids] += 1
        grads, losses = self._holdings.gradients(clients, rows)
        losses = losses.copy()  # the recorder keeps them, and the engine uses its arrays again
        for i, client in enumerate(clients):
            self._arrive(client, grads[i], losses[i])

    def _next_clients(self, limit: int) -> list[int]:
        """Return the clients that arrive next: different ones, and none whose arrival depends on a reply to another."""
        if self._server.holds:
            clients: list[int] = []
            for _ in range(min(limit, self._server.pushes_until_release())):
                client = self._dispatcher.choose(self.iteration + len(clients))
                self._dispatcher.hold(client)
                clients.append(client)
            return clients
        while len(self._order) < limit:
            self._order.append(self._dispatcher.choose(self._drawn))
            self._drawn += 1
        different: list[int] = []
        seen: set[int] = set()
        while len(different) < limit and self._order[0] not in seen:
            client = self._order.popleft()
            seen.add(client)
            different.append(client)
        return different

    def _arrive(self, client: int, grad: Array, losses: Array) -> None:
        """Let one gradient arrive: the update, the reply, the fetches."""
        server, before = self._server, self._server.timestamp
        computed_from = self._holdings.timestamp(client)
        released, finite = server.push(grad, client, computed_from, self.iteration)
        if not finite:
            raise Diverged(self.iteration)
        self._recorder.push(before - computed_from, losses, grad.nbytes)
        self._holdings.pushed(client)
        for other in released:
            self._fetch(other)
        self.iteration += 1
        if self._interval.due(self.iteration, server.timestamp, before):
            self._record()

    def _fetch(self, client: int) -> None:
        given = self._server.fetch(client, self.iteration)
        self._holdings.fetch(client, given, self._server.timestamp, shared=given is self._server.params)
        self._recorder.fetch(given.nbytes)
        if self._server.holds:
            self._dispatcher.release(client)

    def _record(self) -> None:
        begin = time.perf_counter()
        params = self._server.params
        validation = self._engine.evaluate(params, "validation")
        self._seconds_evaluation += time.perf_counter() - begin
        self._recorder.row(self.iteration, self._server.timestamp, validation, self._layout.digest(params))
