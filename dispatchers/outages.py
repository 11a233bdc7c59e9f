"""Outages: each client is up and down in turn; the periods are drawn from (seed, client, number of the period).

A task that is under way when its client goes down is lost, and the client begins its next task when it is up again; or
it is paused, and continues then. Pushes and fetches on their way between client and server go through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from fredsim.dispatchers.distributions import Times
from fredsim.dispatchers.durations import (
    DOWN,
    MOST_AHEAD,
    NEVER,
    UP,
    Draws,
    as_nanoseconds,
    check_not_added,
    check_times,
)
from fredsim.errors import SimulationError
from fredsim.hyper import HyperParameters
from fredsim.numerics.arrays import Integers
from fredsim.plugins.state.states import Stateful

__all__ = ["OutageTimes", "Outages"]

MOST_PERIODS = 10_000_000  # the most periods in which a client may be up during a single task, or while it waits
AHEAD = 128  # the most periods of one client that are drawn together


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
        #: By client: the number of its present period of being up, or of the next one.
        self._number = np.zeros(clients, np.int64)
        self._from = np.zeros(clients, np.int64)
        self._until = self._draw_periods("up", np.arange(clients), self._number)
        #: By client, the number of a period, and how long the client's next few times down and then up are.
        self._drawn: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        self._together = max(1, min(AHEAD, MOST_AHEAD // clients))

    def _draw_periods(self, name: Literal["up", "down"], clients: Integers, numbers: Integers) -> Integers:
        """Return the lengths of periods of being up or down, by client and number (n,): int64 (n,) nanoseconds."""
        times = getattr(self._times, name)
        if isinstance(times, float | int):
            return np.full(len(clients), as_nanoseconds(times))
        return as_nanoseconds(self._draws.draw(times, UP if name == "up" else DOWN, clients, numbers))

    def _next(self, client: int, number: int) -> list[tuple[int, int]]:
        """Return a few times down and then up, in nanoseconds, that follow a client's period of this number."""
        first, found = self._drawn.get(client, (0, []))
        if not first <= number < first + len(found):
            numbers = np.arange(number, number + self._together)
            ids = np.full(len(numbers), client)
            downs, ups = self._draw_periods("down", ids, numbers), self._draw_periods("up", ids, numbers + 1)
            first, found = self._drawn[client] = number, list(zip(downs.tolist(), ups.tolist(), strict=True))
        return found[number - first :]

    def _periods(self, client: int) -> Iterator[tuple[int, int]]:
        """Yield when the client's next periods of being up begin and end, those after its present one.

        Raises SimulationError if they are too many.
        """
        begun = number = int(self._number[client])
        until = int(self._until[client])
        while number < begun + MOST_PERIODS:
            for down, up in (some := self._next(client, number)):
                begin = min(NEVER, until + down)
                until = min(NEVER, begin + up)
                yield begin, until
            number += len(some)
        raise SimulationError(
            f"client {client} went down {MOST_PERIODS:,} times during a single task, or while it waited; give "
            "dispatcher.outages longer times, or clients shorter tasks"
        )

    def begin(self, client: int, time: int) -> int:
        """Return the first time from `time` on at which a client is up; it then stays up until `until(client)`.

        Calls for a client must come in the order of time. Raises SimulationError if it goes down too often meanwhile.
        """
        if self._until[client] <= time < NEVER:
            passed, (begin, until) = next(
                (number, period) for number, period in enumerate(self._periods(client), 1) if period[1] > time
            )
            self._number[client] += passed
            self._from[client], self._until[client] = begin, until
        return max(time, int(self._from[client]))

    def until(self, client: int) -> int:
        """Return when the client, which is up, goes down next."""
        return int(self._until[client])

    def end(self, client: int, time: int, takes: int, last: int) -> int:
        """Return when a task is done that the client, which is up, begins at `time`, and that pauses while it is down.

        It takes `takes` nanoseconds of the client's being up. NEVER if it is never done, or later than `last`. Raises
        SimulationError if the client goes down too often meanwhile.
        """
        left = takes - (self.until(client) - time)
        if left <= 0:
            return time + takes
        if takes < NEVER:
            for begin, until in self._periods(client):
                if begin > last:
                    break
                if left <= until - begin:
                    return begin + left
                left -= until - begin
        return NEVER
