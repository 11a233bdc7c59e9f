"""A clock: clients take simulated time, each as long as its task takes, and the one that is done first arrives first.

Time is int64 nanoseconds. How long a task takes depends on seed, client and task number alone, so two servers on the
same clock have the same machines. If a task is given up and its client starts over, the next task has the client's next
draw, and the time spent is lost. Copies may take time, too (`link`, `server`), and clients may be down (`outages`).
Events are ordered by (time, client).

If no client is ever held or restarted, and copies take no time or all have the same size, the whole order is known
before the first event. Otherwise the run says which clients continue, and how large each copy is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from fredsim.dispatchers.base import Order, Timeline
from fredsim.dispatchers.durations import NEVER, Compute, Draws, TaskDurations, TaskTime, check_own_times, check_times
from fredsim.dispatchers.event_queue import EventQueue
from fredsim.dispatchers.local_steps import TaskSteps, VariedSteps
from fredsim.dispatchers.merged import MergedArrivals
from fredsim.dispatchers.network import Link, Network, ServerTime
from fredsim.dispatchers.outages import Outages, OutageTimes
from fredsim.errors import ConfigError, SimulationError
from fredsim.hyper import HyperParameters
from fredsim.numerics.operations import NumpyOperations, Operations
from fredsim.numerics.streams import Streams
from fredsim.plugins.state.states import State

__all__ = ["Clock"]

#: Stages of a client's task, each an event when it ends; UP a time after which a client loses its task.
COMPUTING, SENDING, ARRIVING, SERVED, ASKING, FETCHING, UP = range(7)
FEW = 8  # so many tasks or fewer are begun one by one; NumPy is faster for more
MOST_LOST = 20_000  # the most tasks lost without an arrival; with many clients, as many again for each 20 of them


class Clock(Timeline):
    """A clock in simulated time: the client that is done first arrives first."""

    idea = "simulated time: clients compute, send and wait as long as machines and networks would"
    timed = True
    operations: Operations = NumpyOperations()
    state_names = (
        "time", "_merged", "_queue", "_network", "_outages", "_numbers", "_begun", "_done", "_received", "_sent",
        "_bytes", "_count", "_last", "_held", "_fresh", "_starting", "_lost",
    )  # fmt: skip

    class Hyper(HyperParameters):
        """How long everything takes: computing, each client's link, the server and shared bandwidth, and outages."""

        compute: Compute = Compute()
        """How long a gradient takes."""
        link: Link = Link()
        """How long a push or a fetch travels between a client and the server."""
        server: ServerTime = ServerTime()
        """How long the server takes for a push, and the bandwidth that all clients share."""
        outages: OutageTimes | None = None
        """How long clients are up and down; null: always up."""

    def expect(self, clients: int) -> None:
        """Raise ConfigError if a list does not have one value per client, or if a time is too long for the clock."""
        check_own_times(self.hyper.compute.seconds, clients)
        noise, limit = self.hyper.compute.noise, self.hyper.compute.limit
        if noise != "none" and noise.add:
            check_times(noise, clients, "dispatcher.compute.noise")
        self._network = Network(self.hyper.link, self.hyper.server, clients)
        self.may_give_up = limit is not None
        check_times(limit, clients, "dispatcher.compute.limit")
        if self.may_give_up and not self._network.instant:
            raise ConfigError(
                "dispatcher.compute.limit is given, and copies take time; what is given up is counted when it ends: "
                "leave limit out, or link and server"
            )
        if self.hyper.outages is not None:
            self.hyper.outages.check(clients)

    def init(self, clients: int, streams: Streams) -> None:
        """Start over: every client begins its first task at time 0."""
        self.expect(clients)
        self._clients = clients
        self._draws = Draws(streams, self.operations.draw)
        self._durations = self._make_durations(self._draws)
        self.configure()

    def _make_durations(self, draws: Draws) -> TaskTime:
        return TaskDurations(self.hyper.compute, self._clients, draws)

    @property
    def sends_on_arrival(self) -> bool:
        """Whether a push is gated and compressed when it arrives: if copies (pushes and fetches) take no time."""
        return self._network.instant

    def configure(
        self, *, reacts: bool = True, size: int = 0, steps: int | VariedSteps = 1, until: int | None = None
    ) -> None:
        """Start over, with what the clock needs to know about the run; see Timeline.configure."""
        self._size = size
        self._until = NEVER - 1 if until is None else until
        if isinstance(self._durations, TaskDurations):
            check_own_times(self.hyper.compute.seconds, self._clients, steps)
            self._durations.set_steps(steps)
        self._network = Network(self.hyper.link, self.hyper.server, self._clients)
        outages = self.hyper.outages
        self._outages = None if outages is None else Outages(outages, self._clients, self._draws)
        self._merged = None
        known_ahead = self._outages is None and self._network.instant and not reacts
        if known_ahead and isinstance(self._durations, TaskDurations):
            self._merged = MergedArrivals(self._durations, self._clients)
        n = self._clients if self._merged is None else 0
        self._queue = EventQueue(n)
        self._numbers, self._begun, self._done, self._received, self._sent, self._bytes = np.zeros((6, n), np.int64)
        self.time = self._count = 0  # the time now, and how many gradients are done
        self._last = -1  # the client that arrived last, until it is held or continues
        self._held: set[int] = set()
        self._fresh = True  # whether no client has begun its first task yet
        self._starting: list[tuple[int, int]] = []  # clients that begin a task, and the times at which they do
        self._lost = 0  # how many tasks were lost in outages since the last arrival

    @property
    def task_steps(self) -> TaskSteps | None:
        """How many local steps tasks have, if they differ."""
        return self._durations.task_steps if isinstance(self._durations, TaskDurations) else None

    def expected_arrivals(self, nanoseconds: int) -> int | None:
        """Return roughly the largest number of arrivals in this time; None for a user's clock."""
        return int(self._durations.rate * nanoseconds / 1e9) if isinstance(self._durations, TaskDurations) else None

    def draw(self, count: int) -> Order:
        """Return the next arrivals: at most `count` if clients may be held; none if no gradient will ever arrive."""
        if self._merged is not None:
            order = self._merged.next(count)
        else:
            rows: list[tuple[int, ...]] = []
            while len(rows) < count and (row := self._next_arrival()):
                rows.append(row)
            columns = np.array(rows, np.int64).reshape(-1, 7)
            client, number, sent, time = columns[:, :4].T.copy()
            order = Order(client, number, time, sent, columns[:, 4:])
        if not self.may_give_up:
            return order
        assert isinstance(self._durations, TaskDurations)  # a user's clock has no limit
        return replace(order, given_up=self._durations.given_up(order.client, order.columns["number"]))

    def _next_arrival(self) -> tuple[int, ...]:
        """Process events until the server is done with a push; return that arrival's row, or () if there is none.

        A row has the client, the task's number, how many gradients were done before, the time, and three stages.
        """
        if self._last >= 0:
            self._request_fetch(self._last, self.time, self._size)
            self._last = -1  # so that it fetches once, even if nobody arrives before the end
        self._begin_tasks()
        while (found := self._queue.pop()) is not None and found[0] <= self._until:
            now, client, stage = found
            if stage == ASKING:
                self._request_fetch(client, now, int(self._bytes[client]))
                self._begin_tasks()
            elif stage in (FETCHING, UP):
                self._begin_when_up(client, now, lost=stage == UP)
            elif self._push_is_served(client, now, stage):
                return self._row_of_arrival(client, now)
        return ()

    def _push_is_served(self, client: int, now: int, stage: int) -> bool:
        """Take a client's task through its next stages; return whether the server is done with the push now.

        `stage` ends now. If a later one takes time, its end is put into the queue; as long as none does, no other event
        can come between them.
        """
        while stage < SERVED:
            time = self._end_of_next_stage(client, now, stage)
            stage += 1
            if time > now:
                if time < NEVER:
                    self._queue.put(client, time, stage)
                return False
        return True

    def _row_of_arrival(self, client: int, now: int) -> tuple[int, ...]:
        self.time, self._last, self._lost = now, client, 0
        stages = self._begun[client], self._done[client], self._received[client]
        row = client, self._numbers[client], self._sent[client], now, *stages
        self._numbers[client] += 1
        return tuple(map(int, row))

    def _end_of_next_stage(self, client: int, now: int, stage: int) -> int:
        """Return when the next stage of a client's task will end; `stage` ends now."""
        network = self._network
        if stage == COMPUTING:
            self._sent[client], self._done[client] = self._count, now
            self._count += 1
            size = self._size
            if self.on_gradient_done is not None:
                size = self.on_gradient_done(client, int(self._numbers[client]), self._count - 1)
            self._bytes[client] = size
            return network.sent(client, now, size)
        size = int(self._bytes[client])
        if stage == SENDING:
            return network.shared_up(now, size)
        self._received[client] = now
        return network.served(now, size)

    def _begin_tasks(self) -> None:
        """Let the clients in `_starting` begin their tasks; at the start of the run, all clients."""
        starting, fresh = self._starting, self._fresh
        self._starting, self._fresh = [], False
        if not fresh and len(starting) <= FEW and self._outages is None:
            for client, time in starting:
                self._begun[client] = time
                end = time + self._durations.of(client, int(self._numbers[client]))
                if end < NEVER:
                    self._queue.put(client, end, COMPUTING)
            return
        if fresh:
            clients, times = np.arange(self._clients), np.zeros(self._clients, np.int64)
        else:
            clients, times = np.array(starting, np.int64).reshape(-1, 2).T
        if not len(clients):
            return
        if self._outages is not None:
            self._queue.put_all(clients, times, FETCHING)
            return
        self._begun[clients] = times
        ends = times + self._durations(clients, self._numbers[clients])
        some = ends < NEVER
        self._queue.put_all(clients[some], ends[some], COMPUTING)

    def _begin_when_up(self, client: int, now: int, *, lost: bool) -> None:
        """Let a client with outages begin its task as soon as it is up; `lost`: it has just gone down, and lost one."""
        outages = cast("Outages", self._outages)
        if lost:
            self._count_lost()
            self._numbers[client] += 1
        at = self._begun[client] = outages.begin(client, now)
        takes = self._durations.of(client, int(self._numbers[client]))
        if outages.lost:
            until = outages.until(client)
            end, stage = (at + takes, COMPUTING) if at + takes <= until else (until, UP)
        else:
            end, stage = outages.end(client, at, takes, self._until), COMPUTING
        if end < NEVER:
            self._queue.put(client, end, stage)

    def _count_lost(self) -> None:
        self._lost += 1
        if self._lost > MOST_LOST * (1 + self._clients // 20):
            raise SimulationError(
                f"clients went down {self._lost:,} times, and no gradient has arrived in between; give "
                "dispatcher.outages.up longer times than tasks take, or task: paused"
            )

    def hold(self, client: int) -> None:
        """Hold a client that has arrived; if it has not arrived yet, it gives up its task."""
        if client == self._last:
            self._last = -1
        else:
            self._begin_tasks()
            self._queue.cancel(client)
        self._held.add(client)

    def release(self, client: int, size: int | None = None) -> None:
        """Release a held client: it fetches `size` bytes (0: it does not fetch) and begins its next task."""
        if client in self._held:
            self._held.discard(client)
            self._continue(client, size)

    def _continue(self, client: int, size: int | None) -> None:
        size = self._size if size is None else size
        if self._network.fetches_in_turn:
            self._bytes[client] = size
            self._queue.put(client, self.time, ASKING)  # clients with smaller ids may still ask at this same time
        else:
            self._request_fetch(client, self.time, size)

    def _request_fetch(self, client: int, now: int, size: int) -> None:
        """Let a client fetch `size` bytes, and then begin its next task."""
        time = self._network.fetched(client, now, size)
        if time < NEVER:
            self._starting.append((client, time))

    def restart(self, client: int, size: int | None = None) -> None:
        """Make a client give up its task, or its push under way, fetch `size` bytes, and begin its next task."""
        if not self._queue.cancel(client):  # the task that it gives up has not begun yet
            self._begin_tasks()
            self._queue.cancel(client)
        self._numbers[client] += 1
        self._continue(client, size)

    def put_state(self, state: State) -> None:
        """Restore a state."""
        super().put_state(state)
        self._starting = [(int(client), int(time)) for client, time in self._starting]
