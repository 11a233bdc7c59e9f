"""Servers and a clock that write down what they are told and asked: the real ones in all that they do."""

import math
from typing import Any

from fredsim.servers import SERVERS, Reply
from fredsim.servers.asgd import ASGD

Row = tuple[int, int, int, int, tuple[int, ...]]

#: Of each push: its time in nanoseconds, client, staleness, the timestamp after it, and who was restarted.
PUSHES: list[Row] = []
#: The (client, task) that the clock was asked for.
TASKS: list[tuple[int, int]] = []


#: When pushes arrived, in seconds.
TIMES: list[float] = []


class Spy:
    """Goes before a server's class."""

    told = 0.0

    def tell_time(self, seconds: float) -> None:
        self.told = seconds

    def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Reply | None:
        me: Any = self
        staleness = me.timestamp - timestamp
        reply: Reply | None = super().apply_update(grad, client_id, timestamp)  # type: ignore[misc]
        restarted = tuple(reply.restarted) if reply else ()
        PUSHES.append((round(self.told * 1e9), client_id, staleness, me.timestamp, restarted))
        return reply


class Told(ASGD):
    """Does nothing with a push but to apply a rule, and yet is told the time of each."""

    def tell_time(self, seconds: float) -> None:
        TIMES.append(seconds)


def __getattr__(name: str) -> type:
    """Return a spied class by the server's name."""
    if name not in SERVERS:
        raise AttributeError(name)
    return type(name, (Spy, SERVERS[name]), {"__module__": __name__})


def seconds(client: int, task: int) -> float:
    """How long each task takes: now and then as long as another's; client 5 has some that never end."""
    if client == 5 and task % 20 == 19:
        return math.inf
    return 0.5 + (client * 7 + task * task * 5) % 11 / 7


class Table:
    """A clock by that table."""

    def __init__(self, latency: float = 0.0, each: float = 0.0) -> None:
        self.link, self.server = {"latency": latency}, {"seconds": each}

    def seconds(self, client: int, task: int) -> float:
        TASKS.append((client, task))
        return seconds(client, task)
