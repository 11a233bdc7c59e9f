"""The path `fused`: an elementwise rule is applied to each gradient while it is formed, and a fetch may be refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array
from fredsim.numerics.verdicts import ALLOWED, DIVERGED, UNDECIDED
from fredsim.plugins.state.states import State
from fredsim.simulation.clients.passes_ahead import PassesAhead
from fredsim.simulation.paths.choice import Choice
from fredsim.simulation.paths.loop import Diverged, Parts
from fredsim.simulation.paths.pace import Pace
from fredsim.simulation.paths.snapshots import Snapshots
from fredsim.simulation.schedule.length import Length
from fredsim.simulation.schedule.schedule import AHEAD, Schedule

__all__ = ["Fused"]

#: The most samples whose indices are drawn ahead at once.
SAMPLES = 2**18
#: The most events of one window, and the most bytes of the parameters that their clients may fetch.
MOST_EVENTS, MOST_BYTES = 64, 2**26


class Copies(Sequence[Array | None]):
    """Arrays for the parameters that clients may fetch after the events of a window; each is taken when it is read."""

    def __init__(self, may_pass: Sequence[bool], take: Callable[[], Array]) -> None:
        """`may_pass` says for each event whether its fetch may pass; `take` returns an array (P,)."""
        self._may_pass, self._take = may_pass, take
        self._taken: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self._may_pass)

    def __getitem__(self, at: int) -> Array | None:  # type: ignore[override]  # nobody asks for slices
        if not self._may_pass[at]:
            return None
        if at not in self._taken:
            self._taken[at] = self._take()
        return self._taken[at]

    def taken_from(self, begin: int) -> list[Array]:
        """Return the arrays that were taken for events from `begin` on."""
        return [array for at, array in self._taken.items() if at >= begin]


class Fused(Snapshots):
    """Clients hold the parameters they fetched; an elementwise rule is applied to each gradient while it is formed.

    Everything is known ahead except which fetches pass. If that depends on v̄ alone, a window of events is one kernel
    call, which sums v in float32; if v̄ is too near to the gate's bounds for float32 to decide, the verdict is
    UNDECIDED, and v̄ is computed again in float64. A fetch that the present v̄ would refuse is expected to be refused,
    and its client may arrive again in the same window; if the gate lets it pass, the window ends before that arrival.
    """

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._share_versions = False  # each event is an update, after which one client fetches: no two share a version
        self._known_from = self._known_to = 0  # the range of events whose minibatches and bounds are known
        self._spare: list[Array] = []  # arrays taken from the pool for fetches that did not pass
        usual = max(1, min(MOST_EVENTS, MOST_BYTES // parts.params.nbytes))
        self._window = min(parts.limits.window or usual, self._most_known())
        self._v_mean = np.nan  # v̄ approximately, after the last window
        self._pace = Pace()  # of an engine that does passes only when they are needed: a window may take seconds
        self._pace.events = 1
        protocol = parts.protocol
        #: Whether a refused fetch changes nothing for the client, so that it may arrive again in the same window.
        self._may_return = protocol.wait and not protocol.fred_timestamps
        server = self.server.elementwise
        gate = protocol.fetch_gate
        watched = self.server.contract.deviation if gate is not None and gate.needs_statistics else ""
        arrays = [server.params, *server.state_of(0)]
        self._executor = self._engine.fused_executor(self.server.rule, arrays, watched, self._window)
        self._passes_ahead = PassesAhead(self._executor, self._window)

    def _warm(self) -> None:
        if self._parts.probe is not None:
            super()._warm()

    def take_state(self) -> State:
        """Return the state, with how far the run has looked ahead: where windows end depends on that."""
        return super().take_state() | {"known_to": self._known_to}

    def put_state(self, state: State) -> None:
        """Restore the state, and look as far ahead as the run had."""
        super().put_state(state)
        self._known_from = self._known_to = int(state["known_to"])
        if self._known_to > self.iteration:  # the clients of these events have been drawn already
            self._look_ahead(self._known_to - self.iteration)

    def _most_known(self) -> int:
        return min(AHEAD, 1 + SAMPLES // self._sampler.batch_size)

    def _look_ahead(self, count: int) -> None:
        """Draw the next `count` clients, their minibatches, and the gate's bounds for their fetches."""
        coming = self._arrivals.peek(count)
        clients, count = coming.client.tolist(), len(coming)
        self._known_from, self._known_to = self.iteration, self.iteration + count
        sent = np.arange(self._known_from, self._known_to) if coming.sent is None else coming.sent
        self._samples = self._sampler.rows(sent, coming.client, coming.columns["number"])
        gate = self._protocol.fetch_gate
        self._bounds = np.full((count, 2), -np.inf) if gate is None else gate.bounds(self._known_from, clients)
        self._passes_ahead.set_events(coming.client, self._samples)

    def _next_window(self, length: Length) -> tuple[Schedule, slice, NDArray[np.bool_]]:
        """Return the next events, none after the next row is due, their places among the known events, and `refused`.

        `refused` (n,) says for each known event whether its fetch is expected to be refused: such a client may arrive
        more than once among the events returned.
        """
        if self.iteration >= self._known_to:
            left, most = length.events_left(self.iteration, self.server.timestamp), self._most_known()
            self._look_ahead(most if left is None else min(most, left))
        row = self._interval.events_until_due(self.iteration, self.server.timestamp)
        known = self._known_to - self.iteration
        limit = min(self._limit(length), known if row is None else min(row, known))
        limit = limit if self._engine.keeps_passes else min(limit, self._pace.events)
        at = self.iteration - self._known_from
        low = self._bounds[:, 0]
        refused = (low > self._v_mean) | (low == np.inf) if self._may_return else np.zeros(len(low), np.bool_)
        schedule = self._arrivals.next(self.iteration, limit, refused=refused[at : at + limit].tolist())
        if schedule.time is not None and len(schedule):
            self._record_rows_before(int(schedule.time[0]))
            due = -1 if self._goal_reached else self._interval.next_time(self._rows_on_clock)
            count = int(np.searchsorted(schedule.time, due, side="right"))
            self._arrivals.put_back(len(schedule) - count)
            schedule = schedule.first(count)
        return schedule, slice(at, at + len(schedule)), refused

    def _advance(self, length: Length) -> None:
        """Do the passes of the next few arrivals together, then apply their gradients, in as few calls as possible."""
        holdings, server, began = self._holdings, self.server, time.perf_counter()
        schedule, window, refused = self._next_window(length)
        if not len(schedule):
            self._ended = not self._goal_reached
            return
        clients, probe = schedule.client.tolist(), self._parts.probe
        if probe is not None and probe.due(self.iteration):
            self._measure(probe, schedule.first(1))
        slots = self._passes_ahead.begin(window.start, len(clients), refused, holdings.params)
        iterations = np.arange(self.iteration, self.iteration + len(clients))
        stamps = np.array([holdings.timestamp(client) for client in clients])
        staleness = iterations - stamps  # every event is an update
        coefficients = server.coefficients(iterations, staleness)
        n, theta = len(coefficients), server.params  # n may be fewer events: the next window then raises the error
        bounds = self._bounds[window][:n].copy()
        bounds[refused[window][:n], 1] = np.inf  # so that the kernel itself lets none of these pass
        copies = Copies((bounds[:, 1] < np.inf).tolist(), lambda: (self._spare or [self._pool.take()]).pop())
        losses = self._executor.prepare(slots[:n], coefficients, bounds, copies)
        i, before, received = 0, server.timestamp, np.zeros(len(clients), np.int64)  # received: bytes fetched
        while i < n:
            for verdict in self._executor.apply(i, n):
                if verdict == DIVERGED:
                    raise Diverged(self.iteration)
                client = clients[i]
                received[i] = self._reply(client, verdict, copies[i])
                if verdict == UNDECIDED and received[i] and client in clients[i + 1 : n]:
                    n = clients.index(client, i + 1)  # it fetched, so its next task is not the expected one
                self._passes_ahead.free(window.start + i, fetched=received[i] > 0)
                self.iteration, i = self.iteration + 1, i + 1
        self._spare += copies.taken_from(n)  # of events that were left to a later window
        self._v_mean = self._executor.mean(n - 1)
        self._arrivals.put_back(len(clients) - n)
        self._recorder.count_pushes(staleness[:n], losses[:n], theta.nbytes, schedule.client[:n])
        if schedule.time is not None:
            self.time = int(schedule.time[n - 1])
        if self._log is not None:
            counts = 1, received[:n] > 0, theta.nbytes, received[:n]
            self._log.add(schedule.first(n), int(iterations[0]), iterations[:n], staleness[:n], copies=counts)
        self._pace.took(time.perf_counter() - began, n)
        if self._interval.due(self.iteration, server.timestamp, before):
            self._record()

    def _reply(self, client: int, verdict: int, copy: Array | None) -> int:
        """Let the client whose gradient was applied begin its next task; return how many bytes it fetched.

        `copy` is the array into which the kernel has copied the parameters, if the verdict is ALLOWED.
        """
        server, holdings = self.server, self._holdings
        server.elementwise.timestamp = server.timestamp = self.iteration + 1
        if not self._protocol.wait:
            holdings.begin(client)
            self._arrivals.began(client)
        if verdict == ALLOWED:
            self._arrivals.fetched(client, self.iteration)
            holdings.adopt(client, cast(Array, copy), server.timestamp)
            self._recorder.count_fetch(server.params.nbytes, client)
            return server.params.nbytes
        if copy is not None:
            self._spare.append(copy)
        if verdict == UNDECIDED:
            return self._fetch(client)
        self._refuse(client)
        return 0
