"""Which clients are at work, if only a share of them is at once (`clients.fraction`).

When the server lets n clients continue, they join those that are idle, and n of all these are drawn, one after the
other, without replacement. So each round of a synchronous server has random clients of its own (McMahan et al. 2017,
arXiv:1602.05629), and an asynchronous one has as many at work at any time (Nguyen et al. 2022, arXiv:2106.06639).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fredsim.dispatchers.fenwick import Fenwick
from fredsim.numerics.streams import Stream, Streams
from fredsim.plugins.state.states import State, Stateful

__all__ = ["Participation"]


class Participation(Stateful):
    """Draws the clients that are at work, each draw by its number, from 0."""

    def __init__(self, clients: int, streams: Streams) -> None:
        """Start with all clients idle."""
        self._idle, self._streams, self._clients = Fenwick(np.ones(clients, np.int64)), streams, clients
        self._drawn = 0

    @property
    def begun(self) -> bool:
        """Whether any client has been drawn."""
        return self._drawn > 0

    def draw(self, count: int) -> list[int]:
        """Return so many idle clients, which are at work from now on: each the k-th by id, k uniform."""
        found = []
        for _ in range(count):
            k = int(self._streams.below(self._idle.total, Stream.PARTICIPATION, 0, self._drawn))
            client = self._idle.find(k)
            self._idle[client] = 0
            self._drawn += 1
            found.append(client)
        return found

    def replace(self, clients: Iterable[int]) -> tuple[list[int], list[int]]:
        """Let these clients be idle; return as many that are drawn, and which of these clients are idle then."""
        released = list(clients)
        for client in released:
            self._idle[client] = 1
        drawn = self.draw(len(released))
        return drawn, [client for client in released if self._idle[client]]

    def idle(self) -> list[int]:
        """Return the clients that are idle."""
        return [client for client in range(self._clients) if self._idle[client]]

    def take_state(self) -> State:
        """Return how many were drawn, and who is idle."""
        return {"drawn": self._drawn, "idle": np.array(self.idle(), np.int64)}

    def put_state(self, state: State) -> None:
        """Restore a state."""
        self._drawn = int(state["drawn"])
        weights = np.zeros(self._clients, np.int64)
        weights[state["idle"]] = 1
        self._idle = Fenwick(weights)
