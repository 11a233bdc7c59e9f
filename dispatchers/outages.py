"""Clients that are down now and then: for each, times up and down in turn, drawn from (seed, client, which of them).

A task that is under way when its client goes down is lost, and begun anew as the client's next task when it is up
again; or it is paused, and goes on then. What is on its way between client and server goes through.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.dispatchers.distributions import Times
from fredsim.dispatchers.durations import DOWN, NEVER, UP, Draws, as_nanoseconds, check_times
from fredsim.errors import SimulationError
from fredsim.hyper import HyperParameters
from fredsim.plugins.states import Stateful

__all__ = ["OutageTimes", "Outages"]

Integers = NDArray[np.int64]
MOST_PASSED = 20_000  # times up of a client that waits


class OutageTimes(HyperParameters):
    """How long clients are up and down: seconds, or {name: a distribution}."""

    up: Times
    """How long a client is up."""
    down: Times
    """How long it is down then."""
    task: Literal["lost", "paused"] = "lost"
    """What becomes of the task under way: it is lost, and the client's next begins; or it goes on."""

    def check(self, clients: int) -> None:
        """Raise ConfigError where a time exceeds the clock."""
        for name in ("up", "down"):
            check_times(getattr(self, name), clients, f"dispatcher.outages.{name}")


class Outages(Stateful):
    """When each client is up."""

    state_names = ("_number", "_from", "_until")

    def __init__(self, times: OutageTimes, clients: int, draws: Draws) -> None:
        """Let every client be up at time 0."""
        self._times, self._draws = times, draws
        #: Whether the task under way is lost when its client goes down.
        self.lost = times.task == "lost"
        self._number = np.zeros(clients, np.int64)  # of the time up that each client is in, or comes to next
        self._from = np.zeros(clients, np.int64)
        self._until = self._drawn("up", np.arange(clients), self._number)

    def _drawn(self, name: Literal["up", "down"], clients: Integers, numbers: Integers) -> Integers:
        """Return how long these times of these clients are, int64 (n,)."""
        times = getattr(self._times, name)
        if isinstance(times, float | int):
            return np.full(len(clients), as_nanoseconds(times))
        return as_nanoseconds(self._draws.of(times, UP if name == "up" else DOWN, clients, numbers))

    def _next(self, client: int) -> None:
        """Let a client's next time up come."""
        ids, number = np.array([client]), self._number[client : client + 1]
        begin = min(NEVER, int(self._until[client] + self._drawn("down", ids, number)[0]))
        self._number[client] += 1
        self._from[client] = begin
        self._until[client] = min(NEVER, begin + int(self._drawn("up", ids, number)[0]))

    def begin(self, client: int, time: int) -> int:
        """Return when a client that wants to compute at this time, none was earlier, is up: it stays so until `until`.

        Raises SimulationError where its times up and down are too many to be gone through.
        """
        passed = 0
        while self._until[client] <= time < NEVER:
            self._next(client)
            passed += 1
            if passed > MOST_PASSED:
                raise SimulationError(
                    f"client {client} went down {MOST_PASSED:,} times while it waited; give dispatcher.outages longer "
                    "times"
                )
        return max(time, int(self._from[client]))

    def until(self, client: int) -> int:
        """Return when the client, which is up, goes down."""
        return int(self._until[client])
