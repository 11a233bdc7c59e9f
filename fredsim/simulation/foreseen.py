"""Simulations of servers whose updates are known ahead but for an elementwise rule, and the choice among all."""

from __future__ import annotations

import time
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import FusedEngine, Machine, NativeEngine, QueueingEngine, QueueMachine
from fredsim.numerics.verdicts import DIVERGED, PASSED, UNDECIDED
from fredsim.simulation.guarded_server import GuardedServer
from fredsim.simulation.paths import Choice, choose_path
from fredsim.simulation.protocol import check
from fredsim.simulation.schedule import Foresight, foresee, places_of, windows_of
from fredsim.simulation.simulation import Diverged, Length, Parts, Simulation
from fredsim.simulation.snapshots import AHEAD, Snapshots
from fredsim.simulation.supplies import Supplies
from fredsim.system.memory import SPILL, refuse_beyond_memory

__all__ = ["Fused", "Queued", "WorkInHand", "make_simulation"]

Array = NDArray[np.float32]

#: Seconds between two looks at whether to stop.
SLICE = 0.2
#: Samples that are drawn ahead at once.
SAMPLES = 2**18
#: Works that are begun together from the initial parameters.
TOGETHER = 1024
#: The gradients of one window on a device.
QUEUED_BYTES = 256 * 2**20


def make_simulation(parts: Parts) -> Simulation:
    """Start the server and return a run's simulation, by the path that it can take.

    Raises ConfigError where parts do not go together, SimulationError where a user's part breaks its contract.
    """
    server, supplies = parts.server, Supplies(parts.clients, parts.model.layout, parts.streams, parts.engine)
    supplies.start(parts.dispatcher)
    parts.protocol.start(supplies)
    server.start(parts.params, supplies, parts.recorder)
    contract, protocol = server.contract, parts.protocol
    check(protocol, contract)
    events, probed, native = parts.length.events, parts.probe is not None, isinstance(parts.engine, NativeEngine)
    choice = choose_path(parts.path, parts.backend, contract, protocol, events, probed=probed, native=native)
    simulation = {"hand": WorkInHand, "fused": Fused, "queued": Queued, "snapshots": Snapshots}[choice.path]
    return simulation(parts, server, choice)


class Fused(Snapshots):
    """Clients hold the parameters they fetched; an elementwise rule is applied to a gradient as it is formed.

    All is known ahead but which fetches pass. Where v̄ alone decides that, a window of events is one call of a kernel,
    whose sums in float32 tell all that is not within a hair's breadth of the gate's bounds.
    """

    def _warm(self) -> None:
        server, engine = self._server.elementwise, cast(FusedEngine, self._engine)
        self._passes = engine.passes
        self._passes([], np.empty((0, 1), np.int64))
        if self._parts.probe is not None:
            super()._warm()
        state = dict(zip(server.rule.state, server.state_of(0), strict=True))
        gate = self._protocol.fetch_gate
        watched = self._server.contract.deviation if gate is not None and gate.needs_statistics else ""
        watched = watched if watched in state else ""
        self._apply = engine.applier(self._server.rule, [server.params, *state.values()], watched)
        self._at, self._clients = 0, np.empty(0, np.int64)
        self._rooms: list[Array] = []  # that were not needed

    def _room(self) -> Array:
        """Return an array for what a client may fetch."""
        return self._rooms.pop() if self._rooms else self._shelf.take()

    def _look_ahead(self, count: int) -> None:
        """Draw the next clients, their minibatches, and what decides on their fetches."""
        begin, own, before = self.iteration, np.empty(count, np.int64), []
        self._draw(count)
        clients, seen = list(self._order), dict[int, int]()
        self._order.clear()
        for i, client in enumerate(clients):
            own[i] = self._numbers[client]
            self._numbers[client] += 1
            before.append(seen.get(client, -1))
            seen[client] = i
        self._at, self._clients, self._before = 0, np.array(clients), before
        self._samples = self._sampler.rows(np.arange(begin, begin + count), self._clients, own)
        self._bounds, gate = np.full((count, 2), -np.inf), self._protocol.fetch_gate
        if gate is not None:
            self._bounds = gate.bounds(begin, clients)

    def _next_window(self, length: Length) -> slice:
        """Return the places of the next events: of different clients, and none after a row is due."""
        if self._at == len(self._clients):
            few = 1 + SAMPLES // self._sampler.batch_size
            self._look_ahead(min(AHEAD, few, length.events - self.iteration))
        at, every = self._at, self._interval.every
        limit = at + min(self._limit(length), every - self.iteration % every, len(self._clients) - at)
        end = at + 1
        while end < limit and self._before[end] < at:
            end += 1
        self._at = end
        return slice(at, end)

    def _advance(self, length: Length) -> None:
        """Do the passes of the next few arrivals together, then apply their gradients, as many a call as can be."""
        holdings, server, window = self._holdings, self._server, self._next_window(length)
        clients, rows, probe = self._clients[window].tolist(), self._samples[window], self._parts.probe
        if probe is not None and probe.due(self.iteration):
            self._measure(probe, clients[0], rows[0])
        losses = self._passes([holdings.params(client) for client in clients], rows).copy()
        iterations = np.arange(self.iteration, self.iteration + len(clients))
        stamps = np.array([holdings.timestamp(client) for client in clients])
        staleness = iterations - stamps  # every event is an update
        coefficients = server.coefficients(iterations, staleness)
        n, size = len(coefficients), server.params.nbytes
        self._at += n - len(clients)  # whose coefficients cannot be had begins the next window, which ends the run
        self._recorder.arrivals(staleness[:n], losses[:n], size)
        bounds = self._bounds[window][:n]
        rooms = [self._room() if may_pass else server.params for may_pass in (bounds[:, 1] < np.inf).tolist()]
        self._apply.begin(coefficients, bounds, rooms)
        i = 0
        while i < n:
            for verdict in self._apply(i):
                if verdict == DIVERGED:
                    raise Diverged(self.iteration)
                client, room = clients[i], rooms[i]
                server.elementwise.timestamp = server.timestamp = self.iteration + 1
                holdings.begin(client)
                if verdict == PASSED:
                    holdings.adopt(client, room, server.timestamp)
                    self._recorder.fetch(size)
                elif verdict == UNDECIDED:
                    self._fetch(client)
                else:
                    self._refuse(client)
                if verdict != PASSED and room is not server.params:
                    self._rooms.append(room)
                self.iteration, i = self.iteration + 1, i + 1
        if self.iteration % self._interval.every == 0:
            self._record()


class Foreseen(Simulation):
    """All that events depend on is known before the first, but for the rule."""

    def __init__(self, parts: Parts, server: GuardedServer, choice: Choice) -> None:
        super().__init__(parts, server, choice)
        self._many = 64  # events at once: what takes a fraction of a second
        self._foresight: Foresight | None = None

    def _begin(self, seen: Foresight) -> None:
        """Take note of all that will happen."""
        raise NotImplementedError

    def _process(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Let events begin … end − 1 happen; return the losses (n, µ) and how many left every parameter finite."""
        raise NotImplementedError

    def _rows(self, events: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the samples (n, µ) of the works that arrive at these events; nothing for −1."""
        seen, some = cast(Foresight, self._foresight), events >= 0
        result = np.zeros((len(events), self._parts.sampler.batch_size), np.int32)
        chosen = events[some]
        result[some] = self._sampler.rows(chosen, seen.clients[chosen], seen.number[chosen])
        return result

    def _advance(self, length: Length) -> None:
        """Let events happen up to the next row, or as many as take a fraction of a second."""
        if self._foresight is None:
            self._foresight = foresee(self._dispatcher.order(length.events), wait=self._protocol.wait)
            self._staleness = self._foresight.staleness
            self._begin(self._foresight)
        began, begin = time.perf_counter(), self.iteration
        end = min(len(self._foresight), begin + self._many, begin + self._interval.every - begin % self._interval.every)
        coefficients = self._server.coefficients(np.arange(begin, end), self._staleness[begin:end])
        end = begin + len(coefficients)
        losses, happened = self._process(begin, end, coefficients)
        if happened < end - begin:
            raise Diverged(begin + happened)
        server, size = self._server.elementwise, self._server.params.nbytes
        self._recorder.events(self._staleness[begin:end], losses, size)
        self.iteration = server.timestamp = self._server.timestamp = end
        took = time.perf_counter() - began
        if took < SLICE / 2:
            self._many *= 2
        elif took > SLICE and self._many > 1:
            self._many //= 2
        if end % self._interval.every == 0:
            self._record()


class WorkInHand(Foreseen):
    """Clients hold the work they have in hand."""

    def __init__(self, parts: Parts, server: GuardedServer, choice: Choice) -> None:
        super().__init__(parts, server, choice)
        nothing, none = np.empty(0, np.int64), np.empty((0, 1), np.float32)
        # Compile before any clock runs.
        machine = self._make_machine(0)
        machine.advance(nothing, nothing, nothing, none.astype(np.int32), none)
        self._check_works(parts, machine.each)
        self._machine: Machine | None = None

    def _check_works(self, parts: Parts, each: int) -> None:
        """Raise ConfigError where what clients may come to have in hand is more than this machine's memory."""
        if parts.limits.memory is None:
            works = min(parts.clients * (1 if parts.protocol.wait else 2), parts.length.events)
            what = f"clients.count is {parts.clients}; the {works:,} works that they may have in hand take"
            refuse_beyond_memory(works * each, what, SPILL)

    def _make_machine(self, slots: int) -> Machine:
        server = self._server.elementwise
        return cast(FusedEngine, self._engine).work_in_hand(
            self._server.rule, server.params, server.state_of(0), slots, self._parts.limits
        )

    def _begin(self, seen: Foresight) -> None:
        """Begin the work that clients start from the initial parameters."""
        machine = self._machine = self._make_machine(seen.slots)
        first = np.flatnonzero(seen.source < 0)
        for begin in range(0, len(first), TOGETHER):
            targets = first[begin : begin + TOGETHER]
            nobody, no_rule = np.full(len(targets), -1), np.zeros((len(targets), 1), np.float32)
            machine.advance(nobody, seen.slot[targets], nobody, self._rows(targets), no_rule)

    def _process(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Let the work of some events arrive, and the next one of each client begin."""
        seen, machine = cast(Foresight, self._foresight), cast("Machine", self._machine)
        slots, targets = seen.slot[begin:end], seen.target[begin:end]
        followed = np.where(targets >= 0, slots, -1)
        return machine.advance(slots, followed, seen.source[begin:end] - begin, self._rows(targets), coefficients)

    def _shares(self) -> dict[str, float] | None:
        return None if self._machine is None else self._machine.shares()

    def _record(self) -> None:
        """Record a row of the server's own arrays."""
        if self._machine is not None:
            server = self._server.elementwise
            self._machine.give(server.params, server.state_of(0))
        super()._record()


class Queued(Foreseen):
    """Clients hold the parameters they fetched, in places on a device."""

    def __init__(self, parts: Parts, server: GuardedServer, choice: Choice) -> None:
        super().__init__(parts, server, choice)
        self._make_machine(1).warm()

    def _make_machine(self, places: int) -> QueueMachine:
        server = self._server.elementwise
        engine = cast(QueueingEngine, self._engine)
        return engine.machine(self._server.rule, server.params, server.state_of(0), places)

    def _begin(self, seen: Foresight) -> None:
        """Find a place for what each client will hold."""
        self._held, self._kept, places = places_of(seen)
        self._machine = self._make_machine(places)

    def _process(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Queue some events."""
        seen = cast(Foresight, self._foresight)
        room = self._parts.limits.window or max(1, QUEUED_BYTES // self._server.params.nbytes)
        windows = list(windows_of(seen.source[begin:end] - begin, room))
        rows = self._rows(np.arange(begin, end))
        return self._machine.advance(windows, self._held[begin:end], self._kept[begin:end], rows, coefficients)
