"""Servers and a clock that record how they are called, and otherwise behave like the real ones."""

import math
from typing import Any

from fredsim.servers import SERVERS, Reply
from fredsim.servers.asgd import ASGD

Row = tuple[int, int, int, int, tuple[int, ...]]

#: For each push: its time in nanoseconds, client, staleness, the timestamp after it, and the clients restarted.
PUSHES: list[Row] = []
#: The (client, task) of each call of the clock.
TASKS: list[tuple[int, int]] = []


#: The times at which pushes arrived, in seconds.
TIMES: list[float] = []


class Spy:
    """A mixin for a server's class that records pushes."""

    arrival = 0.0

    def tell_time(self, seconds: float) -> None:
        self.arrival = seconds

    def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Reply | None:
        me: Any = self
        staleness = me.timestamp - timestamp
        reply: Reply | None = super().apply_update(grad, client_id, timestamp)  # type: ignore[misc]
        restarted = tuple(reply.restarted) if reply else ()
        PUSHES.append((round(self.arrival * 1e9), client_id, staleness, me.timestamp, restarted))
        return reply


class TimedASGD(ASGD):
    """ASGD, which only applies a rule, but also asks for the time of each push."""

    def tell_time(self, seconds: float) -> None:
        TIMES.append(seconds)


def __getattr__(name: str) -> type:
    """Return a spied class by the server's name."""
    if name not in SERVERS:
        raise AttributeError(name)
    return type(name, (Spy, SERVERS[name]), {"__module__": __name__})


def seconds(client: int, task: int) -> float:
    """Return the time of a task: some times are equal, and some tasks of client 5 never end."""
    if client == 5 and task % 20 == 19:
        return math.inf
    return 0.5 + (client * 7 + task * task * 5) % 11 / 7


class Table:
    """A clock with the times of `seconds`."""

    def __init__(self, latency: float = 0.0, each: float = 0.0) -> None:
        self.link, self.server = {"latency": latency}, {"seconds": each}

    def seconds(self, client: int, task: int) -> float:
        TASKS.append((client, task))
        return seconds(client, task)
