"""Simulations of servers whose updates are known ahead but for an elementwise rule, and the choice among all."""

from __future__ import annotations

import time
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fredsim.adapters import AdaptedServer
from fredsim.backends import FusedEngine, Machine, NativeEngine
from fredsim.foresight import foresee
from fredsim.paths import Choice, choose_path
from fredsim.protocol import check
from fredsim.simulation import Diverged, Length, Parts, Simulation, Snapshots

__all__ = ["Fused", "WorkInHand", "make_simulation"]

#: Seconds between two looks at whether to stop.
SLICE = 0.2
#: Works that are begun together from the initial parameters.
TOGETHER = 1024


def make_simulation(parts: Parts) -> Simulation:
    """Start the server and return a run's simulation, by the path that it can take.

    Raises ConfigError where parts do not go together, SimulationError where a user's part breaks its contract.
    """
    server = AdaptedServer(parts.server, parts.params, parts.clients, parts.model.layout, parts.engine, parts.streams)
    check(parts.protocol, server)
    native = isinstance(parts.engine, NativeEngine)
    choice = choose_path(parts.path, parts.backend, server, parts.protocol, parts.length.events, native=native)
    simulation = {"hand": WorkInHand, "fused": Fused, "snapshots": Snapshots}[choice.path]
    return simulation(parts, server, choice)


class Fused(Snapshots):
    """Clients hold the parameters they fetched; an elementwise rule is applied to a gradient as it is formed."""

    def _warm(self) -> None:
        server = self._server.elementwise
        self._fused = cast(FusedEngine, self._engine)
        self._fused.passes([], np.empty((0, 1), np.int64))
        gate = self._protocol.fetch_gate
        watched = self._server.deviation if gate is not None and gate.needs_statistics else None
        self._apply = self._fused.applier(server.update, [server.params, *server.state_of(0)], watched)

    def _advance(self, length: Length) -> None:
        """Do the passes of the next few arrivals together, then apply their gradients one by one."""
        clients = self._next_clients(self._limit(length))
        ids, before = np.array(clients), self.iteration
        iterations = np.arange(before, before + len(clients))
        rows = self._sampler.rows(iterations, ids, self._numbers[ids])
        self._numbers[ids] += 1
        losses = self._fused.passes([self._holdings.params(client) for client in clients], rows).copy()
        stamps = np.array([self._holdings.timestamp(client) for client in clients])
        server = self._server.elementwise
        staleness = iterations - stamps  # every event is an update
        coefficients = self._server.coefficients(iterations, staleness)
        size = self._server.bytes_of("pushed", server.params.nbytes)
        for i, client in enumerate(clients):
            if i == len(coefficients):
                self._server.coefficients(iterations[i:], staleness[i:])  # raises: those of this push cannot be had
            if not self._apply(i, coefficients[i]):
                raise Diverged(self.iteration)
            server.timestamp = self._server.timestamp = self.iteration + 1
            self._recorder.apply(int(staleness[i]))
            self._recorder.push(size, losses[i])
            self._holdings.pushed(client)
            self._fetch(client)
            self.iteration += 1
            if self._interval.due(self.iteration, self.iteration, self.iteration - 1):
                self._record()


class WorkInHand(Simulation):
    """Clients hold the work they have in hand: all that the events depend on is known before the first."""

    def __init__(self, parts: Parts, server: AdaptedServer, choice: Choice) -> None:
        super().__init__(parts, server, choice)
        nothing, none = np.empty(0, np.int64), np.empty((0, 1), np.float32)
        # Compile before any clock runs.
        self._make_machine(0).advance(nothing, nothing, nothing, none.astype(np.int32), none)
        self._machine: Machine | None = None
        self._many = 64  # events at once: what takes a fraction of a second

    def _make_machine(self, slots: int) -> Machine:
        server = self._server.elementwise
        arrays = [server.arrays[name] for name in server.rule.state]
        parts = self._parts
        return cast(FusedEngine, self._engine).work_in_hand(
            server.update, server.params, arrays, slots, parts.window, parts.memory, parts.folder
        )

    def _prepare(self, length: Length) -> Machine:
        """Foresee all events, and begin the work that clients start from the initial parameters."""
        order = self._dispatcher.order(length.events)
        self._foresight = seen = foresee(order, wait=self._protocol.wait)
        self._staleness = seen.staleness
        machine = self._make_machine(seen.slots)
        first = np.flatnonzero(seen.source < 0)
        for begin in range(0, len(first), TOGETHER):
            targets = first[begin : begin + TOGETHER]
            nobody, no_rule = np.full(len(targets), -1), np.zeros((len(targets), 1), np.float32)
            machine.advance(nobody, seen.slot[targets], nobody, self._rows(targets), no_rule)
        return machine

    def _rows(self, events: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the samples (n, µ) of the works that arrive at these events; nothing for −1."""
        seen, some = self._foresight, events >= 0
        result = np.zeros((len(events), self._parts.sampler.batch_size), np.int32)
        chosen = events[some]
        result[some] = self._sampler.rows(chosen, seen.clients[chosen], seen.number[chosen])
        return result

    def _advance(self, length: Length) -> None:
        """Let events happen up to the next row, or as many as take a fraction of a second."""
        machine = self._machine = self._machine or self._prepare(length)
        began = time.perf_counter()
        seen, begin = self._foresight, self.iteration
        end = min(len(seen), begin + self._many, begin + self._interval.every - begin % self._interval.every)
        targets = seen.target[begin:end]
        server = self._server.elementwise
        t, staleness = np.arange(begin, end), self._staleness[begin:end]
        coefficients = self._server.coefficients(t, staleness)
        end = begin + len(coefficients)
        targets, staleness = targets[: len(coefficients)], staleness[: len(coefficients)]
        losses, happened = machine.advance(
            seen.slot[begin:end],
            np.where(targets >= 0, seen.slot[begin:end], -1),
            seen.source[begin:end] - begin,
            self._rows(targets),
            coefficients,
        )
        if happened < end - begin:
            raise Diverged(begin + happened)
        size = server.params.nbytes
        self._recorder.events(
            staleness, losses, self._server.bytes_of("pushed", size), self._server.bytes_of("fetched", size)
        )
        self.iteration = server.timestamp = self._server.timestamp = end
        took = time.perf_counter() - began
        if took < SLICE / 2:
            self._many *= 2
        elif took > SLICE and self._many > 1:
            self._many //= 2
        if end % self._interval.every == 0:
            self._record()

    def _shares(self) -> dict[str, float] | None:
        return None if self._machine is None else self._machine.shares()

    def _record(self) -> None:
        """Record a row of the server's own arrays."""
        if self._machine is not None:
            server = self._server.elementwise
            self._machine.give(server.params, [server.arrays[name] for name in server.rule.state])
        super()._record()
