"""How long pushes and fetches travel: over each client's link, the shared bandwidth, and a server with a queue.

A push leaves its client when the gradient is done. It takes the link's latency and bytes/up; then it waits for its turn
on the bandwidth that all pushes share, and for its turn at the server, which takes `seconds` for it. The fetch that
follows the reply waits for its turn on the bandwidth that all fetches share, and takes bytes/down and the latency.
Everywhere the first to come is the first to be served, one transfer at a time; clients that come at the same time are
served in the order of their ids. A copy that a gate drops is not sent: it takes no time, except to wait for its turn at
the server.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.dispatchers.durations import LAST, check_each, check_times
from fredsim.hyper import HyperParameters, NonNegative, Positive
from fredsim.plugins.state.states import Stateful

__all__ = ["Link", "Network", "ServerTime"]


class Link(HyperParameters):
    """The link of each client: numbers, or lists with one value per client."""

    latency: NonNegative | list[NonNegative] = 0.0
    """The seconds that a push or a fetch travels, in each direction, besides its bytes' time."""
    up: Positive | list[Positive] | None = None
    """Bytes per second from the client; null: unlimited."""
    down: Positive | list[Positive] | None = None
    """Bytes per second to the client; null: unlimited."""


class ServerTime(HyperParameters):
    """What all clients share: the server's time, and the bandwidth to and from it."""

    seconds: NonNegative = 0.0
    """Seconds that the server takes for a push; it takes one push at a time."""
    up: Positive | None = None
    """Bytes per second of all pushes together, one at a time; null: unlimited."""
    down: Positive | None = None
    """Bytes per second of all fetches together, one at a time; null: unlimited."""


class FifoQueue(Stateful):
    """A first-come, first-served queue with one server."""

    state_names = ("_free",)

    def __init__(self) -> None:
        self._free = 0  # the time from which on the server is free

    def serve(self, time: int, duration: int) -> int:
        """Return when the server is done with a request that comes at `time`; calls must be in the order of time."""
        self._free = max(self._free, time) + duration
        return self._free


class Network(Stateful):
    """The times of pushes and fetches, in nanoseconds."""

    state_names = ("_up", "_down", "_server")

    def __init__(self, link: Link, server: ServerTime, clients: int) -> None:
        """Take the experiment's links and the server's times.

        Raises ConfigError if a list does not have one value per client, or if a time is too long for the clock.
        """
        check_times(link.latency, clients, "dispatcher.link.latency")
        for name in ("up", "down"):
            check_each(getattr(link, name), clients, f"dispatcher.link.{name}")
        check_times(server.seconds, clients, "dispatcher.server.seconds")
        self._link = {name: _as_floats(getattr(link, name)) for name in ("latency", "up", "down")}
        self._shared = server
        self._seconds = _nanoseconds(server.seconds)
        self._up, self._down, self._server = FifoQueue(), FifoQueue(), FifoQueue()

    @property
    def instant(self) -> bool:
        """Whether no copy ever takes any time."""
        limits = (self._link["up"], self._link["down"], self._shared.up, self._shared.down)
        latency = self._link["latency"]
        return not self._seconds and all(limit is None for limit in limits) and not np.any(latency)

    @property
    def fetches_in_turn(self) -> bool:
        """Whether a fetch may have to wait for others."""
        return self._shared.down is not None

    def sent(self, client: int, time: int, size: int) -> int:
        """Return when a push of `size` bytes that leaves at `time` has passed the client's link."""
        return time + self._latency(client) + self._transfer(size, "up", client) if size else time

    def shared_up(self, time: int, size: int) -> int:
        """Return when a push that has passed the client's link at `time` has passed the shared bandwidth."""
        rate = self._shared.up
        return self._up.serve(time, _transfer(size, rate)) if size and rate is not None else time

    def served(self, time: int, size: int) -> int:
        """Return when the server is done with a push that reaches it at `time`, or with a dropped one, of 0 bytes."""
        return self._server.serve(time, self._seconds if size else 0)

    def fetched(self, client: int, time: int, size: int) -> int:
        """Return when a client has received `size` bytes that it is sent from `time` on."""
        if not size:
            return time
        rate = self._shared.down
        shared = time if rate is None else self._down.serve(time, _transfer(size, rate))
        return shared + self._transfer(size, "down", client) + self._latency(client)

    def _latency(self, client: int) -> int:
        latency = self._link["latency"]
        return _nanoseconds(latency if isinstance(latency, float) else latency[client])

    def _transfer(self, size: int, direction: str, client: int) -> int:
        rate = self._link[direction]
        return _transfer(size, rate if rate is None or isinstance(rate, float) else rate[client])


def _as_floats(value: Any) -> Any:
    """Return a value as a float, a list by client as an array, and None as it is."""
    return np.array(value, np.float64) if isinstance(value, list) else value if value is None else float(value)


def _transfer(size: int, rate: float | None) -> int:
    """Return how long a transfer takes, in nanoseconds."""
    return 0 if rate is None else _nanoseconds(size / rate)  # ∞ if the quotient exceeds float64


def _nanoseconds(seconds: float) -> int:
    """Return seconds as nanoseconds, rounded half to even; LAST, that is, never, for more than the clock can count."""
    return round(nanoseconds) if (nanoseconds := float(seconds) * 1e9) < LAST else LAST
