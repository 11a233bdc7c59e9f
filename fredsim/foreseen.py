"""Simulations of servers whose updates are known ahead but for an elementwise rule, and the choice among all."""

from __future__ import annotations

import time
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fredsim.adapters import AdaptedServer
from fredsim.backends import FusedEngine, Machine, NativeEngine, QueueingEngine, QueueMachine
from fredsim.foresight import Foresight, foresee, places_of, windows_of
from fredsim.paths import Choice, choose_path
from fredsim.protocol import check
from fredsim.simulation import Diverged, Length, Parts, Simulation
from fredsim.snapshots import Snapshots

__all__ = ["Fused", "Queued", "WorkInHand", "make_simulation"]

Array = NDArray[np.float32]

#: Seconds between two looks at whether to stop.
SLICE = 0.2
#: Works that are begun together from the initial parameters.
TOGETHER = 1024
#: The gradients of one window on a device.
QUEUED_BYTES = 256 * 2**20


def make_simulation(parts: Parts) -> Simulation:
    """Start the server and return a run's simulation, by the path that it can take.

    Raises ConfigError where parts do not go together, SimulationError where a user's part breaks its contract.
    """
    server = AdaptedServer(parts.server, parts.params, parts.clients, parts.model.layout, parts.engine, parts.streams)
    check(parts.protocol, server)
    events, probed, native = parts.length.events, parts.probe is not None, isinstance(parts.engine, NativeEngine)
    choice = choose_path(parts.path, parts.backend, server, parts.protocol, events, probed=probed, native=native)
    simulation = {"hand": WorkInHand, "fused": Fused, "queued": Queued, "snapshots": Snapshots}[choice.path]
    return simulation(parts, server, choice)


class Fused(Snapshots):
    """Clients hold the parameters they fetched; an elementwise rule is applied to a gradient as it is formed."""

    def _warm(self) -> None:
        server = self._server.elementwise
        self._fused = cast(FusedEngine, self._engine)
        self._fused.passes([], np.empty((0, 1), np.int64))
        if self._parts.probe is not None:
            super()._warm()
        gate = self._protocol.fetch_gate
        watched = self._server.deviation if gate is not None and gate.needs_statistics else None
        self._apply = self._fused.applier(server.update, [server.params, *server.state_of(0)], watched)

    def _advance(self, length: Length) -> None:
        """Do the passes of the next few arrivals together, then apply their gradients one by one."""
        clients = self._next_clients(self._limit(length))
        rows = self._rows(clients)
        held = [self._holdings.params(client) for client in clients]
        losses = self._fused.passes(held, rows[:, 0]).copy()
        iterations = np.arange(self.iteration, self.iteration + len(clients))
        stamps = np.array([self._holdings.timestamp(client) for client in clients])
        server = self._server.elementwise
        staleness = iterations - stamps  # every event is an update
        coefficients = self._server.coefficients(iterations, staleness)
        self._apply.begin(coefficients)
        size = self._server.bytes_of("pushed", server.params.nbytes)
        for i, client in enumerate(clients):
            if i == len(coefficients):
                self._server.coefficients(iterations[i:], staleness[i:])  # raises: those of this push cannot be had
            if not self._apply(i):
                raise Diverged(self.iteration)
            server.timestamp = self._server.timestamp = self.iteration + 1
            self._recorder.apply(int(staleness[i]))
            self._recorder.push(size, losses[i])
            self._holdings.pushed(client)
            self._fetch(client)
            self.iteration += 1
            if self._interval.due(self.iteration, self.iteration, self.iteration - 1):
                self._record()


class Foreseen(Simulation):
    """All that events depend on is known before the first, but for the rule."""

    def __init__(self, parts: Parts, server: AdaptedServer, choice: Choice) -> None:
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
        pushed, fetched = self._server.bytes_of("pushed", size), self._server.bytes_of("fetched", size)
        self._recorder.events(self._staleness[begin:end], losses, pushed, fetched)
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

    def __init__(self, parts: Parts, server: AdaptedServer, choice: Choice) -> None:
        super().__init__(parts, server, choice)
        nothing, none = np.empty(0, np.int64), np.empty((0, 1), np.float32)
        # Compile before any clock runs.
        self._make_machine(0).advance(nothing, nothing, nothing, none.astype(np.int32), none)
        self._machine: Machine | None = None

    def _make_machine(self, slots: int) -> Machine:
        server = self._server.elementwise
        return cast(FusedEngine, self._engine).work_in_hand(
            server.update, server.params, server.state_of(0), slots, self._parts.limits
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

    def __init__(self, parts: Parts, server: AdaptedServer, choice: Choice) -> None:
        super().__init__(parts, server, choice)
        self._make_machine(1).warm()

    def _make_machine(self, places: int) -> QueueMachine:
        server = self._server.elementwise
        engine = cast(QueueingEngine, self._engine)
        return engine.machine(server.rule, server.params, server.state_of(0), places)

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
