"""The path that takes any run: clients hold the parameters they fetched.

What a client's gradient is depends only on the parameters it fetched and its minibatch, so those of the next few
arrivals are computed together, as far as they come from different clients; how many changes no bit.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import NativeEngine
from fredsim.errors import ConfigError
from fredsim.plugins.states import Stateful
from fredsim.simulation.guarded_server import Pushed
from fredsim.simulation.holdings import Holdings
from fredsim.simulation.length import Length
from fredsim.simulation.loop import Diverged, Parts, Simulation
from fredsim.simulation.outbox import Message, Outbox
from fredsim.simulation.paths import Choice
from fredsim.simulation.probe import Probe
from fredsim.simulation.schedule import Arrivals, Schedule
from fredsim.system.memory import SPILL, refuse_beyond_memory

__all__ = ["Snapshots"]

Array = NDArray[np.float32]

#: What the events of a window work on should not drive each other out of the cache.
WINDOW_BYTES = 4 * 2**20


class Snapshots(Simulation):
    """Clients hold the parameters they fetched: for any server, gate and compressor."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        contract = self._server.contract
        tensors = list(self._layout.slices.values())
        self._check_copies()
        self._shelf = parts.engine.shelf(len(parts.params), parts.limits)
        self._holdings = Holdings(
            parts.engine,
            parts.params,
            parts.clients,
            wait=parts.protocol.wait,
            pushes=contract.pushes,
            local_steps=parts.protocol.local_steps,
            tensors=tensors,
            shelf=self._shelf,
        )
        self._warm()
        self._outbox = Outbox(parts.protocol.dropped_push, tensors, parts.engine)
        gates = [gate for gate in (parts.protocol.push_gate, parts.protocol.fetch_gate) if gate is not None]
        wait, iterations = parts.protocol.wait, parts.length.iterations
        self._arrivals = Arrivals(self._dispatcher, gates, parts.clients, wait=wait, iterations=iterations)
        # A restart makes work under way void; so may a dropped copy, of who is held: then one event at a time.
        protocol = parts.protocol
        # And the clients' own steps take the learning rate of their arrival, which a schedule may move within a window.
        self._steps_alone = protocol.replica or protocol.local_steps > 1 or contract.pushes != "gradient"
        certain = not contract.cancels and not (contract.holds and gates) and not self._steps_alone
        room = max(1, min(parts.clients, WINDOW_BYTES // parts.params.nbytes))
        self._window = (parts.limits.window or room) if certain else 1
        if isinstance(parts.engine, NativeEngine):
            self._window = parts.engine.settle(parts.limits.window if certain else 1, parts.clients)

    def _check_copies(self) -> None:
        """Raise ConfigError where what clients may come to hold is more than this machine's memory."""
        parts = self._parts
        if parts.limits.memory is None and parts.engine.device_name is None and not parts.server.contract.holds:
            copies = 1 + min(parts.clients * (1 if parts.protocol.wait else 2), parts.length.events)
            what = f"clients.count is {parts.clients}; the {copies:,} copies of the parameters that they may hold take"
            refuse_beyond_memory(copies * parts.params.nbytes, what, SPILL)

    def _warm(self) -> None:
        """Compile before any clock runs."""
        self._engine.gradients([], np.empty((0, 1), np.int64))

    def _limit(self, length: Length) -> int:
        """Return how many events may be taken together: they are sure to be part of the run."""
        limit = min(self._window, length.left(self.iteration, self._server.timestamp))
        probe = self._parts.probe
        return limit if probe is None else min(limit, probe.ahead(self.iteration))

    def _owners(self) -> dict[str, Stateful]:
        return super()._owners() | {"arrivals": self._arrivals, "holdings": self._holdings, "outbox": self._outbox}

    def _advance(self, length: Length) -> None:
        """Compute the work of the next few arrivals together, then let them arrive one by one."""
        server = self._server
        held_for = server.pushes_until_release if server.contract.holds else None
        schedule = self._arrivals.next(self.iteration, self._limit(length), held_for=held_for)
        clients = schedule.client.tolist()
        server.at(clients[0], self.iteration)
        rate = server.rate() if self._steps_alone else 0.0
        pushes, losses, finite = self._holdings.work(clients, self._rows(schedule), rate)
        losses = losses.copy()  # the recorder keeps them, and the engine uses its arrays again
        for i, client in enumerate(clients):
            if not finite[i]:
                raise Diverged(self.iteration)
            self._arrive(client, pushes[i], losses[i])

    def _rows(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the samples (B, k, µ) of the k local steps of the next works that arrive, the first of them probed."""
        count, steps = len(schedule), self._protocol.local_steps
        within = np.arange(steps)
        iterations = np.arange(self.iteration, self.iteration + count)[:, None] * steps + within
        numbers = schedule.number[:, None] * steps + within
        rows = self._sampler.rows(iterations.reshape(-1), np.repeat(schedule.client, steps), numbers.reshape(-1))
        rows = rows.reshape(count, steps, -1)
        probe = self._parts.probe
        if probe is not None and probe.due(self.iteration):
            self._measure(probe, int(schedule.client[0]), rows[0, 0])
        return rows

    def _measure(self, probe: Probe, client: int, rows: NDArray[np.int64]) -> None:
        """Let the probe measure the next arrival; `rows` (µ,) is its first minibatch."""
        begin, kernels = time.perf_counter(), self._engine.seconds
        probe.measure(self.iteration, client, rows, self._holdings, self._server, self._engine)
        self._seconds_before += self._engine.seconds - kernels
        probe.seconds += time.perf_counter() - begin

    def _arrive(self, client: int, push: Array, losses: Array) -> None:
        """Let one client's work arrive: the gate, the update, the reply, the fetches."""
        server, before = self._server, self._server.timestamp
        server.at(client, self.iteration)
        message = self._send(client, push)
        if message is None:  # the client goes on, and nobody else
            pushed = Pushed((client,), (), finite=True)
        else:
            again = message.size == 0
            pushed = server.push(message.push, client, message.timestamp, self.iteration, again=again)
            if not pushed.finite:
                raise Diverged(self.iteration)
            self._recorder.apply(before - message.timestamp, client)
        self._recorder.push(0 if message is None else message.size, losses, client)
        waits = self._protocol.wait
        if not waits:
            self._begin(client)
        for other in pushed.released:
            stays = not self._fetch(other) and self._protocol.replica and other == client
            if stays and not self._holdings.step(client, push, server.rate()):
                raise Diverged(self.iteration)
            if waits:
                self._begin(other)
            if server.contract.holds:
                self._dispatcher.release(other)
        for other in pushed.restarted:
            self._fetch(other)
            self._begin(other)  # its work under way is given up: without waiting too it begins anew
            self._arrivals.give_up(other)
        self.iteration += 1
        if self._interval.due(self.iteration, server.timestamp, before):
            self._record()

    def _send(self, client: int, push: Array) -> Message | None:
        """Return what reaches the server of a client's push."""
        protocol, started_from = self._protocol, self._holdings.timestamp(client)
        if protocol.push_gate is None:
            decoded, size = self._compress(client, push)
            return Message(decoded, started_from, size)
        passes = protocol.push_gate.passes(self.iteration, client, self._server)
        if protocol.compressor is not None and not isinstance(passes, bool):
            raise ConfigError("compress is given; a push that passes tensor by tensor cannot be compressed as one")
        return self._outbox.offer(client, push, started_from, passes, partial(self._compress, client))

    def _compress(self, client: int, push: Array) -> tuple[Array, int]:
        if self._protocol.compressor is None:
            return push, self._server.bytes_of("pushed", push.nbytes)
        decoded, size = self._protocol.compressor.compress(push, client, self.iteration)
        return decoded, size

    def _begin(self, client: int) -> None:
        """Let a client begin its next work from what it holds."""
        holdings = self._holdings
        if not self._protocol.wait:
            holdings.begin(client)
            self._arrivals.began(client)
        if self._server.contract.begins:
            self._server.begins(client, holdings.params(client), holdings.timestamp(client), self.iteration)

    def _fetch(self, client: int) -> bool:
        """Let a client fetch, if the gate lets it; return whether it got anything."""
        server, holdings, gate = self._server, self._holdings, self._protocol.fetch_gate
        passes = True if gate is None else gate.passes(self.iteration, client, server)
        parts = None if isinstance(passes, bool) or all(passes) else passes
        if not (passes if parts is None else any(parts)):
            self._refuse(client)
            return False
        self._arrivals.fetched(client, self.iteration)
        given = server.fetch(client, self.iteration)
        if given is not server.params and not self._engine.finite(given):
            raise Diverged(self.iteration)
        if parts is None:
            shared = given is server.params
            if shared and server.contract.checked and not holdings.agrees(given, server.timestamp):
                raise server.moved(client, self.iteration)
            holdings.fetch(client, given, server.timestamp, shared=shared)
            self._recorder.fetch(server.bytes_of("fetched", given.nbytes), client)
        else:
            holdings.fetch_parts(client, given, server.timestamp, parts)
            self._recorder.fetch(4 * sum(compress(self._layout.sizes, parts)), client)
        return True

    def _refuse(self, client: int) -> None:
        """Let a client go on without a fetch."""
        self._holdings.keep(client)
        if self._protocol.fred_timestamps:
            self._holdings.restamp(client, self._server.timestamp)
        self._recorder.fetch(0, client)
