"""Outages: each client is up and down in turn; the periods are drawn from (seed, client, number of the period).

A task that is under way when its client goes down is lost, and the client begins its next task when it is up again; or
it is paused, and continues then. Pushes and fetches on their way between client and server go through.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fredsim.dispatchers.distributions import Times
from fredsim.dispatchers.durations import DOWN, NEVER, UP, Draws, as_nanoseconds, check_not_added, check_times
from fredsim.errors import SimulationError
from fredsim.hyper import HyperParameters
from fredsim.numerics.arrays import Integers
from fredsim.plugins.states import Stateful

__all__ = ["OutageTimes", "Outages"]

MOST_PASSED = 20_000  # the most periods in which a client may be up while it waits


class OutageTimes(HyperParameters):
    """How long clients are up and down: seconds, or {name: a distribution}."""

    up: Times
    """How long a client is up."""
    down: Times
    """How long a client is down after that."""
    task: Literal["lost", "paused"] = "lost"
    """What happens to the task under way: `lost`, and the client's next task begins; or `paused`, and it continues."""

    def check(self, clients: int) -> None:
        """Raise ConfigError if a time is too long for the clock, or is to be added to something."""
        for name in ("up", "down"):
            check_not_added(getattr(self, name), f"dispatcher.outages.{name}")
            check_times(getattr(self, name), clients, f"dispatcher.outages.{name}")


class Outages(Stateful):
    """The periods in which each client is up."""

    state_names = ("_number", "_from", "_until")

    def __init__(self, times: OutageTimes, clients: int, draws: Draws) -> None:
        """Let every client be up at time 0."""
        self._times, self._draws = times, draws
        #: Whether the task under way is lost when its client goes down.
        self.lost = times.task == "lost"
        self._number = np.zeros(
            clients, np.int64
        )  # by client: the number of its present period of being up, or of the next one
        self._from = np.zeros(clients, np.int64)
        self._until = self._draw_periods("up", np.arange(clients), self._number)

    def _draw_periods(self, name: Literal["up", "down"], clients: Integers, numbers: Integers) -> Integers:
        """Return the lengths of periods of being up or down, by client and number (n,): int64 (n,) nanoseconds."""
        times = getattr(self._times, name)
        if isinstance(times, float | int):
            return np.full(len(clients), as_nanoseconds(times))
        return as_nanoseconds(self._draws.draw(times, UP if name == "up" else DOWN, clients, numbers))

    def _advance(self, client: int) -> None:
        """Advance a client to its next period of being up."""
        ids, number = np.array([client]), self._number[client : client + 1]
        begin = min(NEVER, int(self._until[client] + self._draw_periods("down", ids, number)[0]))
        self._number[client] += 1
        self._from[client] = begin
        self._until[client] = min(NEVER, begin + int(self._draw_periods("up", ids, number)[0]))

    def begin(self, client: int, time: int) -> int:
        """Return the first time from `time` on at which a client is up; it then stays up until `until(client)`.

        Calls for a client must come in the order of time. Raises SimulationError if it goes down too often meanwhile.
        """
        passed = 0
        while self._until[client] <= time < NEVER:
            self._advance(client)
            passed += 1
            if passed > MOST_PASSED:
                raise SimulationError(
                    f"client {client} went down {MOST_PASSED:,} times while it waited; give dispatcher.outages longer "
                    "times"
                )
        return max(time, int(self._from[client]))

    def until(self, client: int) -> int:
        """Return when the client, which is up, goes down next."""
        return int(self._until[client])
